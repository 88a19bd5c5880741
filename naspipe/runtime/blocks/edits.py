"""Work in place on tensors that others have, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from naspipe.core.errors import BlockInputEditedError
from naspipe.runtime.devices.device_waits import Wait
from naspipe.runtime.devices.tensor_bytes import same_bits


def times_edited(tensor: torch.Tensor) -> int:
    """How often it was changed in place; 0 where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def left_as_it_is(
    name: str,
    inputs: Sequence[torch.Tensor],
    fields: Sequence[torch.Tensor] = (),
    looks_at_bits: bool = False,
) -> Iterator[None]:
    """What is called inside changes neither its inputs nor fields of the batch.

    Torch does not count what is done to ``tensor.data``, or by NumPy: only the bits tell.

    Raises:
        BlockInputEditedError: when it did.
    """
    given = (*inputs, *fields)
    before = [times_edited(each) for each in given]
    copies = [each.detach().clone() for each in given] if looks_at_bits else given
    try:
        yield
    except RuntimeError as error:
        if "a view of a leaf Variable" in str(error) and "in-place" in str(error):
            raise _edited(name, "its input") from error
        raise
    for place, (each, copy) in enumerate(zip(given, copies, strict=True)):
        is_same = copy is each or same_bits(each, copy, Wait.INPUT)
        if times_edited(each) != before[place] or not is_same:
            raise _edited(name, "its input" if place < len(inputs) else "a field of its batch")


def _edited(name: str, what: str) -> BlockInputEditedError:
    whom = "the block before it" if what == "its input" else "what others find in the batch"
    return BlockInputEditedError(
        f"{name} changes {what} in place, which would corrupt {whom}; use the out-of-place "
        f"operation (for example inplace=False, or x = x * 2 for x *= 2)"
    )
