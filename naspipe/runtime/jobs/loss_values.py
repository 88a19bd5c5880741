"""What a run's definition says of its loss: its name, and what it was made with.

``CrossEntropyLoss(label_smoothing=0.1)`` trains other bits than ``CrossEntropyLoss()``.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from naspipe.config.user_code import full_name

_PLAIN = (bool, int, float, str, type(None))
_DEEPEST = 8
"""Callables inside callables that are described; one may hold itself, through others."""


def described(loss: object, depth: int = 0) -> str:
    """The name of a loss, with the values that it says of itself as ``record``.

    Without these, with what its ``__init__`` was given, as far as it keeps that under the same
    names and it is not the default: numbers, texts, tensors (by digest), and losses in it.

    Args:
        loss: or another callable.
        depth: how many callables it is inside of.
    """
    name = full_name(loss.func if isinstance(loss, functools.partial) else loss)
    record = getattr(loss, "record", None)
    values = dict(record) if record else dict(sorted(_given(loss, depth)))
    said = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{name}({said})" if values else name


def _given(loss: object, depth: int) -> Iterator[tuple[str, str]]:
    if depth > _DEEPEST:
        return
    if isinstance(loss, functools.partial):
        given: Mapping[str, Any] = {
            **{str(place): value for place, value in enumerate(loss.args)},
            **loss.keywords,
        }
        usual: dict[str, Any] = {}
    elif inspect.isroutine(loss) or isinstance(loss, type):
        return
    else:
        parameters = inspect.signature(type(loss).__init__).parameters.values()
        usual = {each.name: each.default for each in parameters}
        given = {name: getattr(loss, name) for name in usual if hasattr(loss, name)}
    for name, value in given.items():
        text = text_of(value, depth + 1)
        if text and text != text_of(usual.get(name, inspect.Parameter.empty)):
            yield name, text


def text_of(value: Any, depth: int = 0) -> str:
    """Of a value that can be told apart by a text; empty for others.

    Args:
        value: anything.
        depth: how many callables it is inside of.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple | list) and all(isinstance(each, _PLAIN) for each in value):
        return repr(list(value))
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    is_empty = value is inspect.Parameter.empty
    return described(value, depth) if callable(value) and not is_empty else ""


def _tensor_text(value: torch.Tensor) -> str:
    """The shape of a tensor and a digest of its bytes.

    A tensor on the meta device has no bytes, and those of a sparse or nested tensor cannot be
    viewed: these are described by their type alone.
    """
    if value.is_meta or value.layout is not torch.strided or value.is_nested or value.is_quantized:
        return f"{'' if value.is_nested else list(value.shape)}:{value.dtype}"
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{list(value.shape)}:{hashlib.blake2b(content, digest_size=8).hexdigest()}"
