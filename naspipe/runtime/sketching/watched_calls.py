"""What torch is told to do, operation by operation: it may edit ``tensor.data``, or mix types.

Without values torch lets both pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_OF_ONE_TYPE = {
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "native_layer_norm", "native_group_norm",
        "native_batch_norm", "_native_batch_norm_legit",
    )
}  # fmt: skip
"""Operations that take no tensors of different types, as they say once there are values."""


class WatchedCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is called inside is looked at.

    Args:
        given: tensors that nothing may change.
    """

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {each.untyped_storage()._cdata for each in given}
        self.is_edited = False
        """Whether anything has changed one of them."""
        self.is_mixed = False
        """Whether an operation was given types that it probably does not take together."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do what is asked for."""
        named = kwargs or {}
        by_place = zip(func._schema.arguments, args, strict=False)
        by_name = ((each, named.get(each.name)) for each in func._schema.arguments)
        dtypes = set[torch.dtype]()
        for argument, value in chain(by_place, by_name):
            if isinstance(value, torch.Tensor):
                dtypes.add(value.dtype)
                if argument.is_write:
                    self.is_edited |= value.untyped_storage()._cdata in self._given
        self.is_mixed |= len(dtypes) > 1 and func._schema.name in _OF_ONE_TYPE
        return func(*args, **named)
