"""Work in place on given tensors, seen by what torch is told to do: also to ``tensor.data``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class WatchedEdits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is called inside is looked at, operation by operation.

    Args:
        given: tensors that nothing may change.
    """

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {each.untyped_storage()._cdata for each in given}
        self.is_edited = False
        """Whether anything has changed one of them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do what is asked for."""
        named = kwargs or {}
        by_place = zip(func._schema.arguments, args, strict=False)
        by_name = ((each, named.get(each.name)) for each in func._schema.arguments)
        for argument, value in chain(by_place, by_name):
            if argument.is_write and isinstance(value, torch.Tensor):
                self.is_edited |= value.untyped_storage()._cdata in self._given
        return func(*args, **named)
