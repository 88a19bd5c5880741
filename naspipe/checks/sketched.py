"""Candidates of a space without memory for their tensors, on torch's meta device.

Planning uses the sizes of these layers, checks follow shapes through the modules, and a resume
compares the texts that describe them.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from naspipe.config.space import Space
from naspipe.config.user_code import is_users_module
from naspipe.jobs.losses import TORCHS, text_of
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import kept_draws
from naspipe.machine.forking import done_fit
from naspipe.machine.host_arena import round_up
from naspipe.plan.costs import LayerSize, SizeTable, first_of_kind
from naspipe.worker.layers.held_tensors import is_hooked
from naspipe.worker.layers.kept_state import other_buffers
from naspipe.worker.layers.layer_store import check_sized, tensors_of
from naspipe.worker.layers.layout import StateSizes, lay_out
from naspipe.worker.layers.stored_layer import StoredLayer

_DRAWN = {torch.Tensor.uniform_, torch.Tensor.normal_}


class Unfilled(TorchFunctionMode):
    """Makes random initialization of tensors on torch's meta device a no-op.

    Otherwise torch propagates shapes through each operation of the initialization, which takes most
    of the time of making a layer.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func in _DRAWN or getattr(func, "__module__", "") == nn.init.__name__:
            filled = args[0] if args else given.get("tensor")
            if isinstance(filled, torch.Tensor) and filled.is_meta:
                return filled
        return func(*args, **given)


_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class SketchedLayers:
    """The candidates of a space on torch's meta device, made once for all blocks that share them.

    Use it in a separate process, because tensors that a factory keeps are on that device.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._keys = _keys(space)
        self._modules: dict[Hashable, nn.Module | None] = {}
        self._handed_out: dict[Hashable, str] = {}
        self._owners: dict[int, tuple[int, int]] = {}
        self._hooked: set[tuple[int, int]] = set()
        self._memory: list[StorageWeakRef] = []
        """References to the storages of all tensors, so that no identity is reused."""
        self.shared: list[tuple[str, tuple[int, int], tuple[int, int]]] = []
        """Tensors of two candidates: ``parameter`` or ``buffer``, and the two candidates."""

    def places(self) -> Iterator[tuple[int, int]]:
        for block, each in enumerate(self._space.blocks):
            yield from ((block, candidate) for candidate in range(len(each.candidates)))

    def key(self, block: int, candidate: int) -> Hashable:
        """Return a key that is equal for candidates of the same factory."""
        return self._keys[block][candidate]

    def module(self, block: int, candidate: int) -> nn.Module | None:
        """Return a candidate; None if its factory does not work on the meta device."""
        key = self.key(block, candidate)
        if key not in self._modules:
            factory = self._space.blocks[block].candidates[candidate]
            look = partial(self._look, (block, candidate))
            self._modules[key], self._handed_out[key] = _without_memory(factory, look)
        return self._modules[key]

    def handed_out(self, block: int, candidate: int) -> str:
        """Return which objects two calls of the factory share; see :func:`_in_common`."""
        self.module(block, candidate)
        return self._handed_out[self.key(block, candidate)]

    def has_tensor_hooks(self, block: int, candidate: int) -> bool:
        """Return True if the factory registers hooks on parameters or buffers.

        :meth:`module` no longer has them, because it has different tensors.
        """
        self.module(block, candidate)
        return (block, candidate) in self._hooked

    def _look(self, here: tuple[int, int], module: nn.Module) -> None:
        """Record the owner of each storage; parameters that view one storage are also shared."""
        if is_hooked(module):
            self._hooked.add(here)
        for what, tensor in tensors_of(module):
            memory = tensor.untyped_storage()
            self._memory.append(StorageWeakRef(memory))  # type: ignore[no-untyped-call]
            owner = self._owners.setdefault(memory._cdata, here)
            if owner != here:
                self.shared.append((what, owner, here))


def _without_memory(
    factory: Callable[[], Any], look: Callable[[nn.Module], None]
) -> tuple[nn.Module | None, str]:
    """Return a module on torch's meta device, and what a second call of the factory shares with it.

    ``look`` is called with the module as the factory made it, or with a real one if it cannot be
    made on the meta device.
    """
    for device in ("meta", "cpu"):
        # Errors are reported when the real one is made.
        with suppress(Exception), torch.device(device), Unfilled():
            module = factory()
            if not isinstance(module, nn.Module):
                break
            look(module)
            handed_out = _in_common(module, factory) if any(tensors_of(module)) else ""
            return (module.to("meta") if device == "meta" else None), handed_out
    return None, ""


def _in_common(module: nn.Module, factory: Callable[[], Any]) -> str:
    """Return what two calls of a factory share: ``module``, only ``memory``, or "" for nothing.

    Tensors that are never written may share memory.
    """

    def place(tensor: torch.Tensor) -> int:
        memory = tensor.untyped_storage()
        return memory.data_ptr() or memory._cdata

    tensors = [each for _, each in tensors_of(module)]
    others = [each for _, each in tensors_of(factory())]
    if not {*map(id, tensors)}.isdisjoint(map(id, others)):
        return "module"
    written = (place(each) for each in others if each.requires_grad)
    return "" if {*map(place, tensors)}.isdisjoint(written) else "memory"


def _keys(space: Space) -> list[list[Hashable]]:
    """Return a key per candidate; equal factories of one block are distinguished by a count."""
    known: dict[int, list[Hashable]] = {}
    twins = first_of_kind(space)
    for block in sorted(set(twins)):
        seen: Counter[Hashable] = Counter()
        known[block] = []
        for factory in space.blocks[block].candidates:
            key = call_key(factory)
            known[block].append((key, seen[key]))
            seen[key] += 1
    return [known[twin] for twin in twins]


def call_key(value: Any) -> Hashable:
    """Return a key that is equal for functions with equal code, arguments and captured values."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, tuple):
        return tuple, *map(call_key, value)
    if isinstance(value, partial):
        options = sorted(value.keywords.items())
        return (
            partial,
            call_key(value.func),
            call_key(value.args),
            *((n, call_key(v)) for n, v in options),
        )
    if isinstance(value, FunctionType):
        inner: list[Hashable] = []
        for cell in value.__closure__ or ():
            try:
                inner.append(call_key(cell.cell_contents))
            except ValueError:  # the cell of a variable without a value yet
                inner.append(id(cell))
        defaults = [value.__defaults__, *sorted((value.__kwdefaults__ or {}).items())]
        return (
            FunctionType,
            value.__code__,
            id(value.__globals__),
            *inner,
            *map(call_key, defaults),
        )
    return id(value)


def measure_sizes(workload: Workload) -> SizeTable:
    """Return the device memory of every layer, measured once for each kind of block.

    This needs the memory of one parameter's optimizer step at a time, and does not use torch's
    generator.

    Raises:
        ConfigError: if a factory makes no module, or one whose tensors cannot be moved.
    """
    space, recipe = workload.space, workload.definition.recipe
    twins = first_of_kind(space)
    if workload.recipe.parameter_groups:  # these depend on the layers' names
        twins = tuple(range(len(space)))
    kinds = sorted(set(twins))
    learnt = StateSizes(recipe)

    def size(block: int, candidate: int) -> LayerSize:
        module, rule = sketch(space, block, candidate), space.blocks[block].rule
        layer = StoredLayer(space.label(block, candidate), rule, module, recipe)
        layout = lay_out(layer, learnt)
        return LayerSize(
            state_bytes=layout.nbytes,
            parameter_bytes=sum(round_up(slot.nbytes) for slot, _ in layout.parameters),
            writes_forward=_any_buffers(layer.module),
        )

    def sizes() -> dict[str, Any]:
        counts = {kind: range(len(space.blocks[kind].candidates)) for kind in kinds}
        return {"rows": [[size(kind, each) for each in counts[kind]] for kind in kinds]}

    found = done_fit(sizes, "measuring the layers' sizes")
    rows = (tuple(LayerSize(*each) for each in row) for row in found["rows"])
    return SizeTable(twins, dict(zip(kinds, rows, strict=True)))


def buffered_layers(space: Space, defers_norms: bool = False) -> frozenset[tuple[int, int]]:
    """Return block and candidate of the layers with buffers that their forwards may change.

    Deferred batch normalization does not change its buffers in the forward. Does not use torch's
    generator.
    """
    has_buffers = other_buffers if defers_norms else _any_buffers
    twins = first_of_kind(space)
    known = {(twin, each) for twin, each, module in sketches(space) if has_buffers(module)}
    return frozenset(
        (block, candidate)
        for block, twin in enumerate(twins)
        for candidate in range(len(space.blocks[block].candidates))
        if (twin, candidate) in known
    )


def _any_buffers(module: nn.Module) -> bool:
    return any(True for _ in module.buffers())


def sketch(space: Space, block: int, candidate: int) -> nn.Module:
    """Return a candidate's module on torch's meta device.

    It is a real module if the factory needs values, or if its tensors share memory.

    Raises:
        ConfigError: if the factory makes no module, or one without sizes.
    """
    factory: Any = space.blocks[block].candidates[candidate]
    module = None
    with kept_draws():
        # Errors are reported when the real one is made.
        with suppress(Exception), torch.device("meta"), Unfilled():
            module = factory()
        if isinstance(module, nn.Module):
            tensors = [*chain(module.parameters(), module.buffers())]
            memory = {each.untyped_storage()._cdata for each in tensors if not is_lazy(each)}
            if len(memory) < len(tensors):  # lazy tensors have no memory, and others share it
                module = None
        if module is None:
            module = factory()
    check_sized(space.label(block, candidate), module)
    made: nn.Module = module
    return made


def sketches(space: Space) -> Iterator[tuple[int, int, nn.Module]]:
    """Yield block, candidate and :func:`sketch` of every layer of the first block of each kind."""
    for block in sorted(set(first_of_kind(space))):
        for candidate in range(len(space.blocks[block].candidates)):
            yield block, candidate, sketch(space, block, candidate)


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Part of the repr of a module with a function; it differs between processes."""
_LONGEST = 4000


def structures(space: Space) -> dict[str, Any]:
    """Return texts of layers, and the number of each candidate's text, for ``store.compare``.

    Lines that differ between two modules of a user's factory are omitted. Does not use torch's
    generator.
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
    """Remove addresses from a repr, so that it is the same in every process."""
    return _ADDRESS.sub("", text)


def _stable(space: Space, block: int, candidate: int) -> str:
    """Return the lines that are equal for all modules of a factory."""
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
    """Return a module's repr, the other attributes of its parts, and its tensors, a line each."""
    lines = without_addresses(repr(module)).splitlines()
    for name, part in module.named_modules():
        lines += [f"{name}.{key}={value}".lstrip(".") for key, value in sorted(_kept(part))]
    for name, each in chain(module.named_parameters(), module.named_buffers()):
        lines.append(f"{name}: {each.dtype} {list(each.shape)}")
    return lines


def _kept(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield plain values and functions; for a torch module, arguments other than defaults."""
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
    return tuple((each.name, each.default) for each in inspect.signature(kind).parameters.values())


def _text(value: Any) -> str:
    """Return the text of a value; empty for tensors, which have no values here, or without one."""
    if isinstance(value, torch.Tensor | nn.Module):
        return ""
    with suppress(ValueError):  # a C type without a signature
        return without_addresses(text_of(value))
    return ""
