"""Work in place on tensors that others have, too."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from naspipe.core.errors import BlockInputEditedError
from naspipe.runtime.devices.device_waits import Wait
from naspipe.runtime.devices.tensor_bytes import same_bits

_LEAF = "a view of a leaf Variable"
"""In torch's own refusal."""


def times_edited(tensor: torch.Tensor) -> int:
    """How often it was changed in place; 0 where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


class left_as_it_is:  # noqa: N801
    """What is called inside changes neither its inputs nor fields of the batch.

    Torch does not count what is done to ``tensor.data``, or by NumPy: only the bits tell.

    Raises:
        BlockInputEditedError: when it did.
    """

    __slots__ = ("_before", "_copies", "_given", "_name", "_num_inputs")

    def __init__(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        fields: Sequence[torch.Tensor] = (),
        looks_at_bits: bool = False,
    ) -> None:
        self._name, self._num_inputs = name, len(inputs)
        self._given = (*inputs, *fields)
        self._before = [times_edited(each) for each in self._given]
        copies = [each.detach().clone() for each in self._given] if looks_at_bits else None
        self._copies = copies

    def __enter__(self) -> None:
        """All that is needed is known."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Compare, or say an error of torch's about an edit in words of ours."""
        if error is None:
            self._compare()
        elif isinstance(error, RuntimeError) and _LEAF in str(error) and "in-place" in str(error):
            raise _edited(self._name, "its input") from error

    def _compare(self) -> None:
        for place, each in enumerate(self._given):
            is_same = self._copies is None or same_bits(each, self._copies[place], Wait.INPUT)
            if times_edited(each) != self._before[place] or not is_same:
                what = "its input" if place < self._num_inputs else "a field of its batch"
                raise _edited(self._name, what)


def _edited(name: str, what: str) -> BlockInputEditedError:
    whom = "the block before it" if what == "its input" else "what others find in the batch"
    return BlockInputEditedError(
        f"{name} changes {what} in place, which would corrupt {whom}; use the out-of-place "
        f"operation (for example inplace=False, or x = x * 2 for x *= 2)"
    )
