"""Which modules and values of NNI's own model of an architecture stand for which of the space.

They are found by what runs, never by a path: NNI's model is traced, and every call in it must be
the next call of the space's forward under that architecture, with the same inputs. Containers
and identities do not count: a constructor that filters sees other modules in NNI's model than in
the space, so a sequence may have been taken apart there, and an identity may be gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.fx as fx
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.machine.staging import tensor_bytes
from naspipe.nni.library import Sample, library
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
from naspipe.nni.trace import Entered, Traced, arguments, either, traceable

# Values


class Values:
    """What the nodes of a space are in the model that a tracer follows.

    Args:
        space: whose nodes come first in every pair.
        sample: the architecture.
        tracer: follows NNI's model of it.
    """

    def __init__(self, space: nn.Module, sample: Sample, tracer: fx.Tracer) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        """Of NNI's model, by the path of their counterpart in the space."""
        self.drawn: torch.Size | None = None
        """Of the first constant whose values are others there, its shape."""
        self._space = space
        self._sample = sample
        self._tracer = tracer
        self._known: dict[fx.Node, fx.Node] = {}

    def note(self, ours: fx.Node, theirs: fx.Node) -> None:
        """What a node is from now on."""
        self._known[ours] = theirs

    def at(self, node: fx.Node) -> fx.Node:
        """What a node is; one that reads a tensor is itself."""
        while node.target is either:
            is_active = node.meta["ends"].is_active(self._sample)
            node = node.all_input_nodes[0 if is_active else -1]
        return self._known.get(node, node)

    def same(self, ours: Any, theirs: Any) -> bool:
        """Whether two arguments are the same value."""
        if isinstance(ours, fx.Node) and isinstance(theirs, fx.Node):
            ours, theirs = self.at(ours), self._seen_through(theirs)
            if ours.op == "get_attr" and theirs.op == "get_attr" and ours is not theirs:
                return self._same_tensor(str(ours.target), str(theirs.target))
            return self._seen_through(ours) is theirs
        if isinstance(ours, tuple | list) and isinstance(theirs, tuple | list):
            return len(ours) == len(theirs) and all(map(self.same, ours, theirs))
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return list(ours) == list(theirs) and all(
                self.same(value, theirs[key]) for key, value in ours.items()
            )
        if isinstance(ours, slice) and isinstance(theirs, slice):
            return all(
                self.same(getattr(ours, key), getattr(theirs, key))
                for key in ("start", "stop", "step")
            )
        return type(ours) is type(theirs) and bool(ours == theirs)

    def is_passed(self, node: fx.Node) -> bool:
        """Whether a node of NNI's model is an identity."""
        if node.op != "call_module" or not passes(node) or node.graph is not self._tracer.graph:
            return False
        return is_identity(self._root.get_submodule(str(node.target)))

    @property
    def _root(self) -> nn.Module:
        return self._tracer.root

    def _seen_through(self, node: fx.Node) -> fx.Node:
        while self.is_passed(node):
            node = node.all_input_nodes[0]
        return node

    def _same_tensor(self, ours: str, theirs: str) -> bool:
        """Parameters and buffers of one form, whose values are anybody's; or equal constants."""
        one, other = attribute(self._space, ours), attribute(self._root, theirs)
        if not isinstance(one, torch.Tensor) or form_of(one) != form_of(other):
            return False
        if self.tensors.setdefault(ours, other) is not other:
            return False
        is_state = any(other is each for each in (*self._root.parameters(), *self._root.buffers()))
        is_same = is_state or torch.equal(tensor_bytes(one), tensor_bytes(other))
        self.drawn = self.drawn if is_same else self.drawn or one.shape
        return is_same


def attribute(root: nn.Module, path: str) -> Any:
    """What a forward reads of a module; not through ``getattr``, which fails while one traces."""
    path, _, name = path.rpartition(".")
    owner = root.get_submodule(path)
    for kept in (owner._parameters, owner._buffers, owner.__dict__):
        if name in kept:
            return kept[name]
    return getattr(type(owner), name)


def passes(node: fx.Node) -> bool:
    """Whether a call takes one tensor and nothing else."""
    values = (*node.args, *node.kwargs.values())
    return len(values) == 1 and isinstance(values[0], fx.Node)


def described(node: fx.Node, root: nn.Module) -> str:
    """A call with its constants and the tensors that it reads; other values have no name here."""

    def shown(read: fx.Node) -> Any:
        if read.op != "get_attr":
            return ...
        return [str(read.target), *getattr(attribute(root, str(read.target)), "shape", ())]

    target = node.target if isinstance(node.target, str) else node.target.__name__
    args = fx.map_arg((node.args, node.kwargs), shown)
    return f"{target}{args}".replace("Ellipsis", "...")


# Modules


Original = Callable[[fx.Node], tuple[str, nn.Module]]
"""Path and module that an architecture runs at a node that calls a module."""


@dataclass(frozen=True, slots=True)
class Counterparts:
    """The modules and tensors of a model of NNI's, by the paths that layers have them under."""

    modules: dict[str, dict[str, nn.Module]]
    """Of each path the module, as ``""``; or, taken apart, its parts by their paths in it."""
    tensors: dict[str, torch.Tensor]
    """What the forward itself reads."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A module to be called; of a sequence that was taken apart, one of its parts."""

    node: fx.Node
    path: str
    part: str
    module: nn.Module
    is_first: bool = True

    @property
    def is_identity(self) -> bool:
        """Whether the value only passes."""
        return is_identity(self.module) and passes(self.node)

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.path}.{self.part}" if self.part else self.path


def follow(
    traced: Traced, sample: Sample, model: nn.Module, original: Original, *, training: bool = True
) -> Counterparts:
    """Trace NNI's model of an architecture in step with the space.

    Args:
        traced: the space.
        sample: the architecture.
        model: NNI's model of it.
        original: what the space has at a node.
        training: the mode in which NNI's model is traced; the space was in training.

    Raises:
        ConfigError: where the two do not compute the same, with the place in both.
    """
    tracer = _InStep(traced, sample, original)
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        with traceable(traced.name):
            tracer.trace(model)
    finally:
        for module, was_training in modes.items():
            module.training = was_training
    return Counterparts(tracer.modules, tracer.tensors)


class _InStep(fx.Tracer):
    """Follows a model of NNI's, and takes the space's steps with it."""

    def __init__(self, traced: Traced, sample: Sample, original: Original) -> None:
        super().__init__()
        self.modules: dict[str, dict[str, nn.Module]] = {}
        self._traced = traced
        self._sample = sample
        self._left: deque[_Call | fx.Node | Entered] = deque()
        for step in traced.steps:
            regions = step.regions if isinstance(step, Entered) else step.meta["regions"]
            if not all(region.is_active(sample) for region in regions):
                continue
            if isinstance(step, fx.Node) and step.op == "call_module":
                path, module = original(step)
                self._left.append(_Call(step, path, "", module))
            else:
                self._left.append(step)
        self._inputs = deque(node for node in traced.graph.nodes if node.op == "placeholder")
        self._values = Values(traced.space, sample, self)
        self._around: list[nn.Module] = []
        """Entered since the last step; some of NNI's model's containers may be these."""
        self._owners: dict[int, str] = {}
        self._is_leaf = False

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What the forward read itself."""
        return self._values.tensors

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """As :meth:`call_module` decided."""
        return self._is_leaf

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Look into what only holds other modules."""
        only_passes = len(args) == 1 and isinstance(args[0], fx.Proxy) and not kwargs
        self._is_leaf = (only_passes and is_identity(m)) or not self._opens(m)
        return super().call_module(m, forward, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Take the step of the space that this call must be."""
        node = super().create_node(*args, **kwargs)
        if node.op == "placeholder" and self._inputs:
            self._values.note(self._inputs.popleft(), node)
        elif node.op == "output":
            self._end(node)
        elif node.op == "call_module" and not self._values.is_passed(node):
            self._take_module(node)
        elif node.op in ("call_function", "call_method"):
            self._take_function(node)
        return node

    def _opens(self, module: nn.Module) -> bool:
        """Whether NNI's model calls a container, and not what the space calls next.

        Raises:
            ConfigError: when it is neither.
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
        """Put a sequence's parts in its place."""
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
        """The next step that a call of NNI's model can be."""
        while self._left:
            step = self._left[0]
            if isinstance(step, Entered):
                self._around.append(step.module)
            elif isinstance(step, _Call) and step.is_identity:
                self._pass(step)
            else:
                return step
            self._left.popleft()
        return None

    def _pass(self, call: _Call) -> None:
        if call.is_first:
            self._values.note(call.node, self._values.at(call.node.all_input_nodes[0]))
        self.modules.setdefault(call.path, {})

    def _difference(self, ours: nn.Module, theirs: nn.Module) -> str:
        """What differs between the space's module and one of NNI's model; empty if nothing."""
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
        if not self._values.same(expected, (node.args, node.kwargs)):
            self._refuse(
                f", {call.where}: its {named(call.module)} reads other tensors than "
                f"{node.target} does"
            )
        self._values.note(call.node, node)
        self._keep(call, module)

    def _keep(self, call: _Call, module: nn.Module) -> None:
        """Note a counterpart: one for each module, and one module for each that has tensors."""
        parts = self.modules.setdefault(call.path, {})
        known = parts.setdefault(call.part, module)
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
            or not self._values.same(arguments(head, self._sample), (node.args, node.kwargs))
        ):
            self._refuse_function(self._expected(head), described(node, self.root))
        self._left.popleft()
        self._around.clear()
        self._values.note(head, node)

    def _end(self, output: fx.Node) -> None:
        if head := self._head():
            self._refuse_function(self._expected(head), "nothing")
        (ours,) = (node for node in self._traced.graph.nodes if node.op == "output")
        if not self._values.same(ours.args, output.args):
            self._refuse_function(f"to return {ours.args[0]}", f"{output.args[0]}")

    def _expected(self, head: _Call | fx.Node | None) -> str:
        if isinstance(head, _Call):
            return fixed_class(head.module).__name__
        return described(head, self._traced.space) if head else "nothing"

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

    def _check_drawn(self) -> None:
        """What the forward makes of nothing is made once, when it is traced."""
        if self._values.drawn is not None:
            raise ConfigError(
                f"space {self._traced.name}: expected a forward that makes the same tensors every "
                f"time, found one of shape {list(self._values.drawn)} with other values (as of "
                f"torch.randn); draw from what comes in, as in torch.randn_like(x), or in a module"
            )

    def _refuse(self, what: str) -> NoReturn:
        self._check_drawn()
        raise ConfigError(
            f"space {self._traced.name}{what} in NNI's own model of {self._sample!r:.200}; "
            f"build the modules around a choice so that the choice changes none of them"
        )
