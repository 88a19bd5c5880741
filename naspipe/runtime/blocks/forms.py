"""Forms of tensors: shapes and dtypes, as layers hand them on and as messages call them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Form = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Of several tensors, in their order."""


def form_of(tensors: Sequence[torch.Tensor]) -> Form:
    """The form of tensors."""
    return tuple((tuple(each.shape), each.dtype) for each in tensors)


def form_text(form: Form) -> str:
    """As in ``[16, 8, 8, 8]`` or ``[16, 8] and [16] int64``; only float32 goes without saying."""
    texts = [
        str(list(shape)) + ("" if dtype is torch.float32 else str(dtype).replace("torch.", " "))
        for shape, dtype in form
    ]
    return " and ".join(texts) or "nothing"
