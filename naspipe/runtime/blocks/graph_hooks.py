"""Notices code that puts hooks on the graph that autograd records.

A split backward computes parts of a graph twice in its test, and nodes that lead to a weight again
for that weight. A hook on a tensor would be called again, and a checkpoint would be recomputed. The
graph shows neither, so the calls that put them there are counted.

What is put on a node of the graph itself (``grad_fn.register_hook``) is not counted: the types of
nodes belong to torch's C++ code, which does not let their methods be replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

_WATCHED = (
    (torch.Tensor, "register_hook", "its forward puts a hook on a tensor"),
    (torch.Tensor, "retain_grad", "its forward keeps the gradient of a tensor"),
    (saved_tensors_hooks, "__enter__", "its forward has hooks on saved tensors, as checkpoints do"),
)
"""Methods that are counted, each with what a call of it in a forward means.
Non-reentrant checkpoints and ``save_on_cpu`` enter ``saved_tensors_hooks``."""


class _Calls(threading.local):
    """The calls of each watched method in this thread."""

    def __init__(self) -> None:
        self.numbers = [0] * len(_WATCHED)


_CALLS = _Calls()


@cache
def watch_hooks() -> None:
    """Count hooks from now on, in this process and in those that are forked from it."""
    for number, (owner, name, _) in enumerate(_WATCHED):
        setattr(owner, name, _counted(getattr(owner, name), number))


def hook_calls() -> tuple[int, ...]:
    """The calls so far in this thread; to be given to :func:`hooks_since`."""
    return tuple(_CALLS.numbers)


def hooks_since(before: tuple[int, ...]) -> str:
    """Say in one clause what code has put on a graph since then; empty if nothing."""
    for old, new, (_, _, meaning) in zip(before, _CALLS.numbers, _WATCHED, strict=True):
        if new != old:
            return meaning
    return ""


def _counted(method: Callable[..., Any], number: int) -> Callable[..., Any]:
    @wraps(method)
    def counted(*given: Any, **named: Any) -> Any:
        _CALLS.numbers[number] += 1
        return method(*given, **named)

    return counted
