"""Work in place on tensors that others have, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from naspipe.config.errors import BlockInputEditedError
from naspipe.runtime.devices.device_waits import Wait
from naspipe.runtime.devices.tensor_bytes import same_bits

_LEAF = "a view of a leaf Variable"
"""In torch's own refusal."""


def times_edited(tensor: torch.Tensor) -> int:
    """How often it was changed in place; 0 where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


class Edits:
    """Whether a call changed its inputs or fields of the batch in place.

    Torch does not count what is done to ``tensor.data``, or by NumPy: only the bits tell.

    Args:
        inputs: of the call.
        fields: of the batch.
        looks_at_bits: do not rely on what torch counts.
    """

    __slots__ = ("_before", "_copies", "_given", "_num_inputs")

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        fields: Sequence[torch.Tensor] = (),
        looks_at_bits: bool = False,
    ) -> None:
        self._given, self._num_inputs = (*inputs, *fields), len(inputs)
        self._before = [times_edited(each) for each in self._given]
        copies = [each.detach().clone() for each in self._given] if looks_at_bits else None
        self._copies = copies

    def check(self, name: Callable[[], str]) -> None:
        """Behind the call, which messages name so.

        Raises:
            BlockInputEditedError: when something was changed.
        """
        for place, each in enumerate(self._given):
            is_same = self._copies is None or same_bits(each, self._copies[place], Wait.INPUT)
            if times_edited(each) != self._before[place] or not is_same:
                what = "its input" if place < self._num_inputs else "a field of its batch"
                raise _edited(name(), what)

    @staticmethod
    def explain(error: BaseException, name: Callable[[], str]) -> None:
        """Say an error of torch's about an edit in words of ours.

        Raises:
            BlockInputEditedError: when it is one.
        """
        if isinstance(error, RuntimeError) and _LEAF in str(error) and "in-place" in str(error):
            raise _edited(name(), "its input") from error


@contextmanager
def left_as_it_is(
    name: str,
    inputs: Sequence[torch.Tensor],
    fields: Sequence[torch.Tensor] = (),
    looks_at_bits: bool = False,
) -> Iterator[None]:
    """What is called inside changes neither its inputs nor fields of the batch.

    Raises:
        BlockInputEditedError: when it did.
    """
    edits = Edits(inputs, fields, looks_at_bits)
    try:
        yield
    except RuntimeError as error:
        edits.explain(error, lambda: name)
        raise
    edits.check(lambda: name)


def _edited(name: str, what: str) -> BlockInputEditedError:
    whom = "the block before it" if what == "its input" else "what others find in the batch"
    return BlockInputEditedError(
        f"{name} changes {what} in place, which would corrupt {whom}; use the out-of-place "
        f"operation (for example inplace=False, or x = x * 2 for x *= 2)"
    )
