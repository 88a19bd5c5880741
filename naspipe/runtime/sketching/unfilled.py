"""Random values of tensors without memory, which would be computed for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_DRAWN = {torch.Tensor.uniform_, torch.Tensor.normal_}


class Unfilled(TorchFunctionMode):
    """Within it, filling a tensor on torch's meta device with random values does nothing.

    torch works out there what it would do to shapes, step by step, which takes most of the time of
    making a layer.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called for every function of torch."""
        given = kwargs or {}
        if func in _DRAWN or getattr(func, "__module__", "") == nn.init.__name__:
            filled = args[0] if args else given.get("tensor")
            if isinstance(filled, torch.Tensor) and filled.is_meta:
                return filled
        return func(*args, **given)
