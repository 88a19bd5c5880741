"""What candidates are made of, as texts: classes, hyperparameters and forms of tensors.

Two networks whose parameters have the same shapes may still compute something else.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import nn

from naspipe.config.space import Space
from naspipe.config.user_code import is_users_module
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.jobs.loss_values import text_of
from naspipe.runtime.layers.kept_state import TORCHS
from naspipe.runtime.sketching.layer_sizes import sketch

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""In the repr of a module that holds a function: another one in every process."""
_LONGEST = 4000


def structures(space: Space) -> dict[str, Any]:
    """What :mod:`naspipe.trace.reading.made_of` reads: of each candidate the number of a text.

    What differs between two modules that a user's factory makes is left out. Draws nothing from
    torch's generator.
    """
    numbers: dict[str, int] = {}
    twins = first_of_kind(space)
    known = {
        twin: [
            numbers.setdefault(_stable(space, twin, candidate), len(numbers))
            for candidate in range(len(space.blocks[twin].candidates))
        ]
        for twin in sorted(set(twins))
    }
    return {"texts": list(numbers), "layers": [known[twin] for twin in twins]}


def without_addresses(text: str) -> str:
    """A repr that is the same in every process."""
    return _ADDRESS.sub("", text)


def _stable(space: Space, block: int, candidate: int) -> str:
    """Lines that each module of a factory has."""
    module = sketch(space, block, candidate)
    lines = structure(module)
    if any(is_users_module(type(part).__module__) for part in module.modules()):
        known = set(structure(sketch(space, block, candidate)))
        lines = [line for line in lines if line in known]
    text = "\n".join(lines)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}\n... {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def structure(module: nn.Module) -> list[str]:
    """A module's repr, what its parts keep beside that, and its tensors, a line each."""
    lines = without_addresses(repr(module)).splitlines()
    for name, part in module.named_modules():
        lines += [f"{name}.{key}={value}".lstrip(".") for key, value in sorted(_kept(part))]
    for name, each in chain(module.named_parameters(), module.named_buffers()):
        lines.append(f"{name}: {each.dtype} {list(each.shape)}")
    return lines


def _kept(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Plain values and functions; of a module of torch's what it was made with and is not usual."""
    if not type(module).__module__.startswith("torch."):
        for name, value in vars(module).items():
            if name not in TORCHS and (text := _text(value)):
                yield name, text
        return
    kind: Any = type(module)
    for name, usual in _arguments(kind):
        text = _text(getattr(module, name, usual))
        if text and text != _text(usual):
            yield name, text


@cache
def _arguments(kind: Any) -> tuple[tuple[str, Any], ...]:
    """What a module of torch's is made with, and what is usual."""
    return tuple((each.name, each.default) for each in inspect.signature(kind).parameters.values())


def _text(value: Any) -> str:
    """Empty for tensors, which have no values here, and for what cannot be told."""
    if isinstance(value, torch.Tensor | nn.Module):
        return ""
    with suppress(ValueError):  # of a type of C's, which says nothing
        return without_addresses(text_of(value))
    return ""
