"""Which layers of a space keep nothing: looked up before a run, so that all stages know."""

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


_Form = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Counts(NamedTuple):
    """Of one subnet."""

    flops: float
    """Floating point operations of one sample's forward, in its products and convolutions (what
    torch's counter knows); NaN where the layers cannot be followed without values."""
    params: int


class _Counted(NamedTuple):
    flops: int
    outputs: tuple[torch.Tensor, ...]


class SubnetCounter:
    """Counts subnets of one space; layers of one kind and input shape are counted once.

    Args:
        space: whose subnets.
        batch: whose shapes the layers see.
    """

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
        """Why operations cannot be counted; empty as long as they can."""

    def of(self, choices: Sequence[int]) -> Counts:
        """The counts of a subnet: one choice per choice block.

        Raises:
            ConfigError: when the choices do not fit the space.
        """
        chain = self._space.chain(choices)
        params = sum(self._params_of(block, option) for block, option in enumerate(chain))
        if not self.problem:
            try:
                return Counts(self._flops(chain) / self._samples, params)
            except (RuntimeError, NotImplementedError, TypeError, ValueError, KeyError) as error:
                self.problem = (str(error).splitlines() or [repr(error)])[0][:200]
        return Counts(float("nan"), params)

    def check(self) -> None:
        """Make sure that operations can be counted.

        Raises:
            ConfigError: when they cannot.
        """
        if self.problem:
            raise ConfigError(
                f"space {self._space.name}: expected layers whose operations can be counted from "
                f"shapes alone, found: {self.problem}; leave --max-flops out"
            )

    def _flops(self, chain: Sequence[int]) -> int:
        total, state = 0, tuple[torch.Tensor, ...]()
        for block, option in enumerate(chain):
            fields = (self._fields[name] for name in self._space.fields(block))
            counted = self._layer(block, option, (*state, *fields))
            total, state = total + counted.flops, counted.outputs
        return total

    def _layer(self, block: int, option: int, inputs: tuple[torch.Tensor, ...]) -> _Counted:
        twin = self._twins[block]
        key = (twin, option, tuple((tuple(t.shape), t.dtype) for t in inputs))
        if key not in self._known:
            from torch.utils.flop_counter import FlopCounterMode  # which prints tables: needs more

            own = self._space.blocks[twin]
            module = sketch(self._space, twin, own.candidate(option)).to("meta").eval()
            counter = FlopCounterMode(display=False)
            with torch.no_grad(), torch.device("meta"), kept_draws(), counter:
                result = own.forward_of(module, option)(*inputs)
            outputs = result if isinstance(result, tuple) else (result,)
            self._known[key] = _Counted(int(counter.get_total_flops()), outputs)
        return self._known[key]

    def _params_of(self, block: int, option: int) -> int:
        """Of an elastic layer, those of the module that is cut for a setting."""
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
