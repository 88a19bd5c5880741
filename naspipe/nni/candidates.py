"""The layers of a block, each made when it is first used.

A layer is a ``torch.fx.GraphModule`` whose submodules keep their paths in the model space, so
that its parameters have the names that NNI gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx as fx
from torch import nn

from naspipe.machine.determinism import kept_draws
from naspipe.nni.counterparts import Counterparts, attribute, follow
from naspipe.nni.cut import Draft, fused_cell
from naspipe.nni.library import Sample, is_open, library
from naspipe.nni.trace import Region, Traced, arguments, either
from naspipe.worker.layers.held_tensors import copied


def make_candidate(
    traced: Traced, draft: Draft, sample: Sample, found: Counterparts | None = None
) -> nn.Module:
    """The layer that an architecture has in a block, with the original modules' weights.

    Modules that are made with values have no original: they come from a model of this
    architecture that NNI makes anew, and draw from torch's generator; or of ``found``, where that
    model is there.
    """
    return _Builder(traced, draft, sample, found).build()


class _Builder:
    def __init__(
        self, traced: Traced, draft: Draft, sample: Sample, found: Counterparts | None
    ) -> None:
        self._traced = traced
        self._space = traced.space
        self._draft = draft
        self._sample = sample
        self._graph = fx.Graph()
        self._made: dict[fx.Node, Any] = {}
        self._modules: dict[str, Any] = {}
        self._found = found
        self._memo: dict[int, Any] = {}

    def build(self) -> nn.Module:
        """Copy the nodes that this architecture has."""
        for node in self._draft.inputs:
            self._made[node] = self._graph.placeholder(node.name)
        for node in self._draft.nodes:
            if all(region.is_active(self._sample) for region in node.meta["regions"]):
                self._made[node] = self._copy(node)
        outputs = [self._output(node) for node in self._draft.outputs]
        self._graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        self._graph.lint()
        for node in self._graph.nodes:
            node.meta = {}  # what it says is of the whole space
        return fx.GraphModule(self._modules, self._graph, class_name="Layer")

    def _output(self, node: fx.Node) -> Any:
        """A tensor that passes on; in a region that is left out, its source stands for it."""
        if node not in self._made:
            inactive = (r for r in node.meta["regions"] if not r.is_active(self._sample))
            return self._read(next(inactive).source)
        return self._read(node)

    def _read(self, node: fx.Node) -> Any:
        if node not in self._made:
            self._made[node] = self._copy(node)
        return self._made[node]

    def _copy(self, node: fx.Node) -> Any:
        if node.target is either:
            region: Region = node.meta["ends"]
            return self._read(node.all_input_nodes[0 if region.is_active(self._sample) else -1])
        if node.op == "call_module":
            return self._call(node)
        if node.op == "get_attr":
            self._modules[str(node.target)] = self._copied(attribute(self._space, str(node.target)))
        if "cell" in node.meta:
            args, kwargs = fx.map_arg(arguments(node, self._sample), self._read)
            return self._graph.call_function(torch.cat, args, kwargs)
        return self._graph.node_copy(node, self._read)

    def _call(self, node: fx.Node) -> Any:
        path, module = running(self._space, node, self._sample)
        if isinstance(module, library().input_choice):
            chosen = self._sample[module.label]
            chosen = chosen if isinstance(chosen, list) else [chosen]
            inputs: Any = node.args[0]
            if len(chosen) == 1:
                return self._read(inputs[chosen[0]])
            self._modules[path] = library().chosen_inputs(chosen, reduction=module.reduction)
        elif path not in self._modules:
            made = self._of_model(path) if is_open(module) else self._copied(module)
            self._modules[path] = made
        args = fx.map_arg(node.args, self._read)
        kwargs = fx.map_arg(node.kwargs, self._read)
        return self._graph.call_module(path, args, kwargs)

    def _copied(self, original: Any) -> Any:
        """A copy; what two originals of the layer share, their copies share."""
        return copied(original, self._memo)

    def _of_model(self, path: str) -> nn.Module:
        """A module of the whole model of this architecture, so that its weights are NNI's."""
        if self._found is None:
            model = fixed_model(self._space, self._sample)
            self._found = counterparts(self._traced, self._sample, model)
        return whole(self._found.modules[path])


def running(space: Any, node: fx.Node, sample: Sample) -> tuple[str, nn.Module]:
    """Path and module that an architecture runs at a node of its space.

    The module is the space's; a cell's operation is made for the input that it was chosen with,
    as NNI's fixed cell makes it.
    """
    path = str(node.target)
    module = space.get_submodule(path)
    if not isinstance(module, library().layer_choice):
        return path, module
    name = sample[module.label]
    path = f"{path}.{name}"
    if place := fused_cell(space, node):
        return path, _for_input(*place, str(name), sample)
    return path, module[name]


def _for_input(cell: Any, step: int, op: int, name: str, sample: Sample) -> nn.Module:
    factories = cell.op_candidates_factory
    factory = factories[name] if isinstance(factories, Mapping) else factories[int(name)]
    if isinstance(factory, nn.Module):
        return copied(factory)
    (chosen,) = sample[cell.inputs[step][op].label]
    make: Callable[..., nn.Module] = factory
    with library().under(sample):
        return _printable(make(step + cell.num_predecessors, op, chosen))


def counterparts(
    traced: Traced, sample: Sample, model: nn.Module, *, training: bool = True
) -> Counterparts:
    """What stands in a model of NNI's, in one of its modes, for what an architecture runs.

    Raises:
        ConfigError: where they do not compute the same.
    """
    with kept_draws():
        return follow(
            traced, sample, model, lambda node: running(traced.space, node, sample),
            training=training,
        )  # fmt: skip


def whole(parts: Mapping[str, nn.Module]) -> nn.Module:
    """A module from its parts in NNI's model; a sequence that was taken apart is put together."""
    if "" in parts:
        return parts[""]
    sequence = nn.Sequential()
    for path, part in parts.items():
        *outer, name = path.split(".")
        at: nn.Module = sequence
        for each in outer:
            if each not in at._modules:
                at.add_module(each, nn.Sequential())
            at = at.get_submodule(each)
        at.add_module(name, part)
    return sequence


def fixed_model(space: Any, sample: Sample) -> nn.Module:
    """NNI's model of one architecture, with weights of its own."""
    with library().under(sample):
        return _printable(type(space)(*space.trace_args, **space.trace_kwargs))


def _printable(module: nn.Module) -> nn.Module:
    """Some of NNI's fixed modules miss what their own ``repr`` shows; give them nothing to show."""
    part: Any
    for part in module.modules():
        if hasattr(part, "save_init_arguments") and "trace_args" not in part.__dict__:
            part.save_init_arguments()
    return module
