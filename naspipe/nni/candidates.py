"""The layers of a block, each made when it is first used.

A layer is a ``torch.fx.GraphModule`` whose submodules keep their paths in the model space, so
that its parameters have the names that NNI gives them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch.fx as fx
from torch import nn

from naspipe.nni.cut import Draft, Kind, fused_cell
from naspipe.nni.library import library
from naspipe.nni.mutables import Sample, labels_in
from naspipe.nni.trace import Region, either


def make_candidate(space: Any, draft: Draft, sample: Sample) -> nn.Module:
    """The layer that an architecture has in a block, with the original modules' weights.

    Modules that are made with values have no original: they come from a model of this
    architecture that NNI makes anew, and draw from torch's generator.
    """
    return _Builder(space, draft, sample).build()


class _Builder:
    def __init__(self, space: Any, draft: Draft, sample: Sample) -> None:
        self._space = space
        self._draft = draft
        self._sample = sample
        self._graph = fx.Graph()
        self._made: dict[fx.Node, Any] = {}
        self._modules: dict[str, Any] = {}
        self._model: Any = None
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
            self._modules[str(node.target)] = self._copied(_attribute(self._space, node.target))
        return self._graph.node_copy(node, self._read)

    def _call(self, node: fx.Node) -> Any:
        path, known = str(node.target), library()
        module = self._space.get_submodule(path)
        if isinstance(module, known.input_choice):
            chosen = self._sample[module.label]
            chosen = chosen if isinstance(chosen, list) else [chosen]
            inputs: Any = node.args[0]
            if len(chosen) == 1:
                return self._read(inputs[chosen[0]])
            self._modules[path] = known.chosen_inputs(chosen, reduction=module.reduction)
        elif isinstance(module, known.layer_choice):
            name = self._sample[module.label]
            path = f"{path}.{name}"
            self._modules[path] = self._candidate(node, module, name, path)
        elif labels_in(module):
            self._modules[path] = self._of_model(path)
        else:
            self._modules[path] = self._copied(module)
        args = fx.map_arg(node.args, self._read)
        kwargs = fx.map_arg(node.kwargs, self._read)
        return self._graph.call_module(path, args, kwargs)

    def _candidate(self, node: fx.Node, choice: Any, name: Any, path: str) -> nn.Module:
        if self._draft.kind is Kind.LAYERS and (place := fused_cell(self._space, node)):
            return self._for_input(*place, str(name))
        if labels_in(choice[name]):
            return self._of_model(path)
        module: nn.Module = self._copied(choice[name])
        return module

    def _copied(self, original: Any) -> Any:
        """A copy; what two originals of the layer share, their copies share."""
        return copy.deepcopy(original, self._memo)

    def _for_input(self, cell: Any, step: int, op: int, name: str) -> nn.Module:
        """A cell's operation for the input it was chosen with, as NNI's fixed cell makes it."""
        factories = cell.op_candidates_factory
        factory = factories[name] if isinstance(factories, Mapping) else factories[int(name)]
        if isinstance(factory, nn.Module):
            return copy.deepcopy(factory)
        (chosen,) = self._sample[cell.inputs[step][op].label]
        make: Callable[..., nn.Module] = factory
        with library().under(self._sample):
            return _printable(make(step + cell.num_predecessors, op, chosen))

    def _of_model(self, path: str) -> nn.Module:
        """A module of the whole model of this architecture, so that its weights are NNI's."""
        if self._model is None:
            self._model = fixed_model(self._space, self._sample)
        return counterpart(self._space, self._model, path)


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


def counterpart(space: nn.Module, model: nn.Module, path: str) -> nn.Module:
    """The module of a fixed model that stands where ``path`` leads in its space.

    There a chosen candidate stands in its choice's place, and a ``Repeat`` is a plain sequence.

    Raises:
        AttributeError: when the architecture has no such module.
    """
    known = library()
    at: nn.Module = space
    for part in path.split("."):
        is_choice = isinstance(at, known.layer_choice)
        is_repeats_list = isinstance(at, known.repeat) and part == "blocks"
        at = at.get_submodule(part)
        if not is_choice and not is_repeats_list:
            model = model.get_submodule(part)
    return model


def _attribute(space: nn.Module, target: Any) -> Any:
    owner, _, name = str(target).rpartition(".")
    return getattr(space.get_submodule(owner), name)
