"""Which modules and values of NNI's own model of an architecture correspond to those of the space.

They are matched by execution, never by path: NNI's model is traced, and every call in it must be
the next call of the space's forward under that architecture, with the same inputs. Containers and
identities do not count: a constructor that filters gets other modules in NNI's model than in the
space, so a sequence may have been taken apart there, and an identity may be missing.

The same comparison finds the modules that NNI creates for the number of open ends of a cell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.fx as fx
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.machine.determinism import kept_draws
from naspipe.machine.staging import tensor_bytes
from naspipe.nni.cut import fused_cell
from naspipe.nni.library import Sample, call_open, library
from naspipe.nni.module_equality import (
    class_difference,
    fixed_class,
    form_of,
    is_identity,
    is_of,
    is_sequence,
    named,
    parts_of,
)
from naspipe.nni.trace import (
    SIZED_BY,
    Entered,
    Traced,
    arguments,
    attribute,
    either,
    input_labels,
    is_loose,
    traceable,
    variants,
)
from naspipe.worker.layers.held_tensors import copied

# What an architecture runs


def fixed_model(space: Any, sample: Sample) -> nn.Module:
    """Return NNI's model of one architecture, with its own weights."""
    with library().under(sample):
        return _printable(type(space)(*space.trace_args, **space.trace_kwargs))


def running(space: Any, node: fx.Node, sample: Sample) -> tuple[str, nn.Module]:
    """Return the path and the module that an architecture runs at a node of its space.

    The module is the space's; a cell's operation is created for its chosen input, as in NNI's fixed
    cell.
    """
    path = str(node.target)
    module = space.get_submodule(path)
    if not isinstance(module, library().layer_choice):
        return path, module
    name = sample[module.label]
    path, place = f"{path}.{name}", fused_cell(space, node)
    if place is None:
        return path, module[name]
    cell, step, op = place
    factories = cell.op_candidates_factory
    factory = factories[str(name)] if isinstance(factories, Mapping) else factories[int(name)]
    if isinstance(factory, nn.Module):
        return path, copied(factory)
    (chosen,) = sample[cell.inputs[step][op].label]
    make: Callable[..., nn.Module] = factory
    with library().under(sample):
        return path, _printable(make(step + cell.num_predecessors, op, chosen))


def _printable(module: nn.Module) -> nn.Module:
    """Add the attributes that the ``repr`` of some of NNI's fixed modules needs and they lack."""
    part: Any
    for part in module.modules():
        if hasattr(part, "save_init_arguments") and "trace_args" not in part.__dict__:
            part.save_init_arguments()
    return module


def _passes(node: fx.Node) -> bool:
    """Return True if a call takes one tensor and nothing else."""
    values = (*node.args, *node.kwargs.values())
    return len(values) == 1 and isinstance(values[0], fx.Node)


def _described(node: fx.Node, root: nn.Module) -> str:
    """Describe a call, its constants and the tensors that it reads; other values have no name."""

    def shown(read: fx.Node) -> Any:
        if read.op != "get_attr":
            return ...
        return [str(read.target), *getattr(attribute(root, str(read.target)), "shape", ())]

    target = node.target if isinstance(node.target, str) else node.target.__name__
    args = fx.map_arg((node.args, node.kwargs), shown)
    return f"{target}{args}".replace("Ellipsis", "...")


# NNI's model, followed in step with the space


@dataclass(frozen=True, slots=True)
class Counterparts:
    """The modules and tensors of an NNI model, by their paths in the layers."""

    modules: dict[str, dict[str, nn.Module]]
    """For each path the module, as ``""``, or, if taken apart, its parts by their inner paths."""
    tensors: dict[str, torch.Tensor]
    """Tensors that the forward itself reads."""


def counterparts(
    traced: Traced, sample: Sample, model: nn.Module, *, training: bool = True
) -> Counterparts:
    """Trace NNI's model of an architecture, in one of its modes, in step with the space.

    The space was traced in training mode. Raises ConfigError if the two do not compute the same,
    with the place in both.
    """
    modes = {module: module.training for module in model.modules()}
    with kept_draws():
        tracer = _InStep(traced, sample)
        model.train(training)
        try:
            with traceable(traced.name):
                tracer.trace(model)
        finally:
            for module, was_training in modes.items():
                module.training = was_training
    return Counterparts(tracer.modules, tracer.tensors)


@dataclass(frozen=True, slots=True)
class _Call:
    """A module to be called, or one of the parts of a sequence that was taken apart."""

    node: fx.Node
    path: str
    part: str
    module: nn.Module
    is_first: bool = True

    @property
    def where(self) -> str:
        return f"{self.path}.{self.part}" if self.part else self.path


class _InStep(fx.Tracer):
    """Follows an NNI model, and consumes the steps of the space in parallel."""

    def __init__(self, traced: Traced, sample: Sample) -> None:
        super().__init__()
        self.modules: dict[str, dict[str, nn.Module]] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        """Tensors that the forward has read, by the path of their counterpart in the space."""
        self._traced = traced
        self._sample = sample
        self._left: deque[_Call | fx.Node | Entered] = deque()
        """Steps of the space that NNI's model has not taken yet."""
        for step in traced.steps:
            regions = step.regions if isinstance(step, Entered) else step.meta["regions"]
            if not all(region.is_active(sample) for region in regions):
                continue
            if isinstance(step, fx.Node) and step.op == "call_module":
                path, module = running(traced.space, step, sample)
                self._left.append(_Call(step, path, "", module))
            else:
                self._left.append(step)
        self._inputs = deque(node for node in traced.graph.nodes if node.op == "placeholder")
        self._known: dict[fx.Node, fx.Node] = {}
        """The node of NNI's model for each node of the space that has been matched."""
        self._around: list[nn.Module] = []
        """Modules entered since the last step, candidates for the containers of NNI's model."""
        self._owners: dict[int, str] = {}
        self._drawn: torch.Size | None = None
        """Shape of the first constant whose values differ in NNI's model."""
        self._is_leaf = False

    # torch.fx calls these

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        only_passes = len(args) == 1 and isinstance(args[0], fx.Proxy) and not kwargs
        self._is_leaf = (only_passes and is_identity(m)) or not self._opens(m)
        return super().call_module(m, forward, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Match this call with the next step of the space."""
        node = super().create_node(*args, **kwargs)
        if node.op == "placeholder" and self._inputs:
            self._known[self._inputs.popleft()] = node
        elif node.op == "output":
            if head := self._head():
                self._refuse_function(self._expected(head), "nothing")
            (ours,) = (each for each in self._traced.graph.nodes if each.op == "output")
            if not self._same(ours.args, node.args):
                self._refuse_function(f"to return {ours.args[0]}", f"{node.args[0]}")
        elif node.op == "call_module" and not self._is_passed(node):
            self._take_module(node)
        elif node.op in ("call_function", "call_method"):
            self._take_function(node)
        return node

    # Values

    def _at(self, node: fx.Node) -> fx.Node:
        """Return the node of NNI's model for a node of the space, or a ``get_attr`` node itself."""
        while node.target is either:
            is_active = node.meta["ends"].is_active(self._sample)
            node = node.all_input_nodes[0 if is_active else -1]
        return self._known.get(node, node)

    def _same(self, ours: Any, theirs: Any) -> bool:
        """Return True if an argument in the space is the same value as one in NNI's model."""
        if isinstance(ours, fx.Node) and isinstance(theirs, fx.Node):
            ours, theirs = self._at(ours), self._seen_through(theirs)
            if ours.op == "get_attr" and theirs.op == "get_attr" and ours is not theirs:
                return self._same_tensor(str(ours.target), str(theirs.target))
            return self._seen_through(ours) is theirs
        if isinstance(ours, tuple | list) and isinstance(theirs, tuple | list):
            return len(ours) == len(theirs) and all(map(self._same, ours, theirs))
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return list(ours) == list(theirs) and all(
                self._same(value, theirs[key]) for key, value in ours.items()
            )
        if isinstance(ours, slice) and isinstance(theirs, slice):
            return all(
                self._same(getattr(ours, key), getattr(theirs, key))
                for key in ("start", "stop", "step")
            )
        return type(ours) is type(theirs) and bool(ours == theirs)

    def _is_passed(self, node: fx.Node) -> bool:
        """Return True if a node of NNI's model is an identity."""
        if node.op != "call_module" or not _passes(node) or node.graph is not self.graph:
            return False
        return is_identity(self.root.get_submodule(str(node.target)))

    def _seen_through(self, node: fx.Node) -> fx.Node:
        while self._is_passed(node):
            node = node.all_input_nodes[0]
        return node

    def _same_tensor(self, ours: str, theirs: str) -> bool:
        """Compare tensors read by two forwards: parameters and buffers by form, others by value."""
        one, other = attribute(self._traced.space, ours), attribute(self.root, theirs)
        if not isinstance(one, torch.Tensor) or form_of(one) != form_of(other):
            return False
        if self.tensors.setdefault(ours, other) is not other:
            return False
        is_state = any(other is each for each in (*self.root.parameters(), *self.root.buffers()))
        is_same = is_state or torch.equal(tensor_bytes(one), tensor_bytes(other))
        self._drawn = self._drawn if is_same else self._drawn or one.shape
        return is_same

    # Steps

    def _opens(self, module: nn.Module) -> bool:
        """Return True if NNI's model calls a container, False if it calls the space's next module.

        Raises:
            ConfigError: if it is neither.
        """
        while True:
            head = self._head()
            for index, container in enumerate(self._around):
                if is_of(container, module) and not is_sequence(module):
                    del self._around[: index + 1]
                    return True
            if isinstance(head, _Call) and not self._difference(head.module, module):
                return False
            if is_sequence(module):
                return True
            if not (isinstance(head, _Call) and is_sequence(head.module)):
                self._refuse_module(head, module)
            self._take_apart(head)

    def _take_apart(self, call: _Call) -> None:
        """Replace a sequence with its parts."""
        self._left.popleft()
        inner = "blocks." if isinstance(call.module, library().repeat) else ""
        prefix = f"{call.part}.{inner}" if call.part else inner
        parts = [
            _Call(call.node, call.path, f"{prefix}{name}", part, call.is_first and not number)
            for number, (name, part) in enumerate(parts_of(call.module).items())
        ]
        self._left.extendleft(reversed(parts))
        if not parts and call.is_first:
            self._pass(call)
        self.modules.setdefault(call.path, {})

    def _head(self) -> _Call | fx.Node | None:
        """Return the next step that a call of NNI's model can match."""
        while self._left:
            step = self._left[0]
            if isinstance(step, Entered):
                self._around.append(step.module)
            elif isinstance(step, _Call) and is_identity(step.module) and _passes(step.node):
                self._pass(step)
            else:
                return step
            self._left.popleft()
        return None

    def _pass(self, call: _Call) -> None:
        if call.is_first:
            self._known[call.node] = self._at(call.node.all_input_nodes[0])
        self.modules.setdefault(call.path, {})

    def _difference(self, ours: nn.Module, theirs: nn.Module) -> str:
        """Return how a module of the space differs from one of NNI's model; empty if equal."""
        if not isinstance(ours, library().input_choice):
            return class_difference(ours, theirs)
        chosen = self._sample[ours.label]
        expected: list[Any] = [chosen if isinstance(chosen, list) else [chosen], ours.reduction]
        is_it = isinstance(theirs, library().chosen_inputs)
        if is_it and [theirs.chosen, theirs.reduction] == expected:
            return ""
        return named(theirs)

    def _take_module(self, node: fx.Node) -> None:
        call, module = self._head(), self.root.get_submodule(str(node.target))
        if not isinstance(call, _Call):
            self._refuse_module(call, module)
        self._left.popleft()
        self._around.clear()
        expected: tuple[Any, Any] = (call.node.args, call.node.kwargs)
        if not call.is_first:
            expected = ((call.node,), {})
        if not self._same(expected, (node.args, node.kwargs)):
            self._refuse(
                f", {call.where}: its {named(call.module)} reads other tensors than "
                f"{node.target} does"
            )
        self._known[call.node] = node
        # One counterpart for each module, and one module for each counterpart that has tensors.
        known = self.modules.setdefault(call.path, {}).setdefault(call.part, module)
        has_tensors = any(True for _ in (*module.parameters(), *module.buffers()))
        owner = self._owners.setdefault(id(module), call.where) if has_tensors else call.where
        if known is not module or owner != call.where:
            self._refuse(
                f", {call.where}: {named(module)} is one module there and several here, or the "
                f"other way round ({owner})"
            )

    def _take_function(self, node: fx.Node) -> None:
        head = self._head()
        if (
            not isinstance(head, fx.Node)
            or (head.op, head.target) != (node.op, node.target)
            or not self._same(arguments(head, self._sample), (node.args, node.kwargs))
        ):
            self._refuse_function(self._expected(head), _described(node, self.root))
        self._left.popleft()
        self._around.clear()
        self._known[head] = node

    # Refusals

    def _expected(self, head: _Call | fx.Node | None) -> str:
        if isinstance(head, _Call):
            return fixed_class(head.module).__name__
        return _described(head, self._traced.space) if head else "nothing"

    def _refuse_module(self, head: _Call | fx.Node | None, module: nn.Module) -> NoReturn:
        paths = (name for name, each in self.root.named_modules() if each is module)
        path = next(paths, "a place of its own")
        place = f", {head.where}" if isinstance(head, _Call) else ""
        found = named(module)
        if isinstance(head, _Call) and is_of(head.module, module):
            found = self._difference(head.module, module)
        self._refuse(f"{place}: expected {self._expected(head)}, found {found} at {path}")

    def _refuse_function(self, expected: str, found: str) -> NoReturn:
        self._check_drawn()
        raise ConfigError(
            f"space {self._traced.name}: its forward depends on labels outside of modules and "
            f"choices: expected {expected} for every architecture, found {found} for "
            f"{self._sample!r:.200}; move that into a module that is made with the values"
        )

    def _refuse(self, what: str) -> NoReturn:
        self._check_drawn()
        raise ConfigError(
            f"space {self._traced.name}{what} in NNI's own model of {self._sample!r:.200}; "
            f"build the modules around a choice so that the choice changes none of them"
        )

    def _check_drawn(self) -> None:
        """Raise if a forward creates random tensors, because tracing creates them only once."""
        if self._drawn is not None:
            raise ConfigError(
                f"space {self._traced.name}: expected a forward that makes the same tensors every "
                f"time, found one of shape {list(self._drawn)} with other values (as of "
                f"torch.randn); draw from what comes in, as in torch.randn_like(x), or in a module"
            )


# Modules made for the open ends of cells


def find_sized(traced: Traced, values: Mapping[str, Any]) -> None:
    """Record which modules of a space NNI creates for the open ends of which cells.

    ``values`` are the values of every label.
    """
    space = traced.space
    cells = {cell.label: cell for cell in space.modules() if is_loose(cell)}
    if not cells:
        return
    sample: Sample = {label: options[-1] for label, options in values.items()}
    for cell in cells.values():
        sample |= {label: [0] for label in input_labels(cell)}  # all are open, as in the space
    with kept_draws():
        model = fixed_model(space, sample)
        places = {id(module): path for path, module in model.named_modules()}
        found = counterparts(traced, sample, model).modules
        shapes = _shapes(model)
        for cell in cells.values():
            other = _shapes(fixed_model(space, {**sample, **next(variants(cell, by_number=True))}))
            differ = [name for name, shape in shapes.items() if other.get(name) != shape]
            for path, parts in found.items():
                outer = space.get_submodule(path.rpartition(".")[0])
                if isinstance(outer, library().layer_choice):
                    continue  # in a cell it is created for its input
                module = space.get_submodule(path)
                sized = []  # parts of the module that have tensors of other shapes
                for part, theirs in parts.items():
                    for inner, each in module.get_submodule(part).named_modules():
                        prefix = f"{places[id(theirs)]}." + (f"{inner}." if inner else "")
                        if any(name.startswith(prefix) for name in differ):
                            sized.append(each)
                if sized:
                    SIZED_BY[module] = (*SIZED_BY.get(module, ()), cell)
                    for each in (module, *sized):
                        call_open(each)


def _shapes(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
