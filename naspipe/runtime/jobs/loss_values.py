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

from naspipe.core.user_code import full_name

_PLAIN = (bool, int, float, str, type(None))


def described(loss: object) -> str:
    """The name of a loss, with the values that it says of itself as ``record``.

    Without these, with what its ``__init__`` was given, as far as it keeps that under the same
    names and it is not the default: numbers, texts, tensors (by digest), and losses in it.
    """
    name = full_name(loss.func if isinstance(loss, functools.partial) else loss)
    record = getattr(loss, "record", None)
    values = dict(record) if record else dict(sorted(_given(loss)))
    said = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{name}({said})" if values else name


def _given(loss: object) -> Iterator[tuple[str, str]]:
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
        text = text_of(value)
        if text and text != text_of(usual.get(name, inspect.Parameter.empty)):
            yield name, text


def text_of(value: Any) -> str:
    """Of a value that can be told apart by a text; empty for others."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple | list) and all(isinstance(each, _PLAIN) for each in value):
        return repr(list(value))
    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{list(value.shape)}:{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    is_empty = value is inspect.Parameter.empty
    return described(value) if callable(value) and not is_empty else ""
