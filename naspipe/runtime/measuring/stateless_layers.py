"""Which layers of a space keep nothing: looked up before a run, so that all stages know."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from naspipe.config.space import Space
from naspipe.data.keyed.global_draws import kept_draws
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.forking.own_thread import without_helpers
from naspipe.runtime.layers.kept_state import keeps_state

_known: WeakKeyDictionary[Space, frozenset[tuple[int, int]]] = WeakKeyDictionary()


class _StateFound(BaseException):
    """Ends the making of a layer whose first parameter or buffer has been seen."""


def stateless_layers(space: Space) -> frozenset[tuple[int, int]]:
    """Block and candidate of the layers without state: see :func:`keeps_state`.

    Each kind of block is looked at once. Nothing is drawn from torch's generator, and no memory is
    taken. What copies a module does so in one thread, as an agent asks behind its fork. A layer
    that cannot be made on torch's meta device counts as one with state.
    """
    if space not in _known:
        twins = first_of_kind(space)
        with kept_draws(), without_helpers():
            own = {twin: set(_stateless(space.blocks[twin].candidates)) for twin in set(twins)}
        _known[space] = frozenset(
            (block, candidate) for block, twin in enumerate(twins) for candidate in own[twin]
        )
    return _known[space]


def _stateless(factories: tuple[Callable[[], Any], ...]) -> Iterator[int]:
    return (number for number, factory in enumerate(factories) if not _makes_state(factory))


def _makes_state(factory: Callable[[], Any]) -> bool:
    """Whether a factory's layer keeps state; it is left as soon as that is known."""
    try:
        with torch.device("meta"), _ending_at_state() as seen:
            module = factory()
    except (_StateFound, Exception):  # whatever is wrong is said when the real one is made
        return True
    return bool(seen) or not isinstance(module, nn.Module) or keeps_state(module)


@contextmanager
def _ending_at_state() -> Iterator[list[str]]:
    """Inside, whoever gives a module a tensor to keep is interrupted; what was seen, if anything.

    Making the rest of a large layer would be most of the work. The interruption may be caught by a
    factory, so its result says less than what was seen. Other threads are left alone.
    """
    seen: list[str] = []
    thread = threading.get_ident()

    def end(_: nn.Module, name: str, tensor: Any) -> None:
        if tensor is not None and threading.get_ident() == thread:
            seen.append(name)
            raise _StateFound(name)

    hooks = [
        register_module_parameter_registration_hook(end),
        register_module_buffer_registration_hook(end),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
