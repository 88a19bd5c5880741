"""Properties of layers that do not depend on values: operations, parameters, and whether they keep
state. All stages of a run know the layers without state before it starts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from naspipe.checks.sketched import sketch
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.machine.determinism import kept_draws
from naspipe.machine.forking import without_helpers
from naspipe.plan.costs import first_of_kind
from naspipe.worker.layers.kept_state import keeps_state

_known: WeakKeyDictionary[Space, frozenset[tuple[int, int]]] = WeakKeyDictionary()


class _StateFound(BaseException):
    """Interrupts the construction of a layer when its first parameter or buffer is registered."""


def stateless_layers(space: Space) -> frozenset[tuple[int, int]]:
    """Return block and candidate of the layers without state; see :func:`keeps_state`.

    Each kind of block is checked once, without torch's generator and without allocating memory.
    Modules are copied in one thread, because an agent calls this after its fork. A layer that
    cannot be made on torch's meta device counts as a layer with state.
    """
    if space not in _known:
        twins = first_of_kind(space)
        own: dict[int, list[int]] = {}
        with kept_draws(), without_helpers():
            for twin in set(twins):
                makers = enumerate(space.blocks[twin].candidates)
                own[twin] = [number for number, make in makers if not _makes_state(make)]
        _known[space] = frozenset(
            (block, candidate) for block, twin in enumerate(twins) for candidate in own[twin]
        )
    return _known[space]


def _makes_state(factory: Callable[[], Any]) -> bool:
    """Return True if a factory's layer keeps state; interrupt the factory once that is known."""
    try:
        with torch.device("meta"), _ending_at_state() as seen:
            module = factory()
    except (_StateFound, Exception):  # errors are reported when the real one is made
        return True
    return bool(seen) or not isinstance(module, nn.Module) or keeps_state(module)


@contextmanager
def _ending_at_state() -> Iterator[list[str]]:
    """Context in which registering a parameter or buffer raises; yields the names that were seen.

    This saves making the rest of a large layer. The names are kept because a factory may catch the
    exception. Other threads are not interrupted.
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


_Form = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Counts(NamedTuple):
    """Numbers of operations and parameters of one subnet."""

    flops: float
    """Floating-point operations of one sample's forward, in matrix products and convolutions (as
    counted by torch); NaN if the layers cannot be computed without values."""
    params: int


class _Counted(NamedTuple):
    flops: int
    outputs: tuple[torch.Tensor, ...]


class SubnetCounter:
    """Counts subnets of one space; each kind of layer and input shape is computed only once."""

    def __init__(self, space: Space, batch: Mapping[str, torch.Tensor]) -> None:
        self._space = space
        self._twins = first_of_kind(space)
        self._fields = {
            name: value.to("meta") for name, value in batch.items() if torch.is_tensor(value)
        }
        self._samples = max(1, next((len(v) for v in self._fields.values() if v.dim()), 1))
        self._known: dict[tuple[int, int, _Form], _Counted] = {}
        self._params: dict[tuple[int, int], int] = {}
        self.problem = ""
        """Why operations cannot be counted; empty if they can."""

    def of(self, choices: Sequence[int]) -> Counts:
        chain = self._space.chain(choices)
        params = sum(self._params_of(block, option) for block, option in enumerate(chain))
        if not self.problem:
            try:
                flops, state = 0, tuple[torch.Tensor, ...]()
                for block, option in enumerate(chain):
                    fields = (self._fields[name] for name in self._space.fields(block))
                    counted = self._layer(block, option, (*state, *fields))
                    flops, state = flops + counted.flops, counted.outputs
                return Counts(flops / self._samples, params)
            except (RuntimeError, NotImplementedError, TypeError, ValueError, KeyError) as error:
                self.problem = (str(error).splitlines() or [repr(error)])[0][:200]
        return Counts(float("nan"), params)

    def check(self) -> None:
        """Refuse a space whose operations cannot be counted."""
        if self.problem:
            raise ConfigError(
                f"space {self._space.name}: expected layers whose operations can be counted from "
                f"shapes alone, found: {self.problem}; leave --max-flops out"
            )

    def _layer(self, block: int, option: int, inputs: tuple[torch.Tensor, ...]) -> _Counted:
        twin = self._twins[block]
        key = (twin, option, tuple((tuple(t.shape), t.dtype) for t in inputs))
        if key not in self._known:
            from torch.utils.flop_counter import FlopCounterMode  # slow to import

            own = self._space.blocks[twin]
            module = sketch(self._space, twin, own.candidate(option)).to("meta").eval()
            counter = FlopCounterMode(display=False)
            with torch.no_grad(), torch.device("meta"), kept_draws(), counter:
                result = own.forward_of(module, option)(*inputs)
            outputs = result if isinstance(result, tuple) else (result,)
            self._known[key] = _Counted(int(counter.get_total_flops()), outputs)
        return self._known[key]

    def _params_of(self, block: int, option: int) -> int:
        """Return the number of a layer's parameters; for an elastic layer, those of a setting."""
        key = (self._twins[block], option)
        if key not in self._params:
            own = self._space.blocks[key[0]]
            module = sketch(self._space, key[0], own.candidate(option))
            if own.setting(option):
                what = (
                    f"layer {self._space.option_label(*key)}: expected a cut that needs no values"
                )
                with users_code(f"{what}, found"), torch.device("meta"):
                    module = own.cut_of(module.to("meta"), option)
            self._params[key] = sum(parameter.numel() for parameter in module.parameters())
        return self._params[key]
