"""The layers of a block, each created when it is first used.

A layer is a ``torch.fx.GraphModule`` whose submodules keep their paths in the model space, so that
its parameters have NNI's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx as fx
from torch import nn

from naspipe.nni.counterparts import Counterparts, counterparts, fixed_model, running
from naspipe.nni.cut import Draft
from naspipe.nni.library import Sample, is_open, library
from naspipe.nni.trace import Region, Traced, arguments, attribute, either
from naspipe.worker.layers.held_tensors import copied


def make_candidate(
    traced: Traced, draft: Draft, sample: Sample, found: Counterparts | None = None
) -> nn.Module:
    """Create the layer that an architecture has in a block, with the original modules' weights.

    Modules that are constructed from label values have no original: they are taken from ``found``,
    the counterparts in NNI's model of this architecture. If it is None, NNI creates that model,
    using torch's random generator.
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
        """Preserves sharing: what two originals of the layer share, their copies share, too."""

    def build(self) -> nn.Module:
        for node in self._draft.inputs:
            self._made[node] = self._graph.placeholder(node.name)
        for node in self._draft.nodes:
            if all(region.is_active(self._sample) for region in node.meta["regions"]):
                self._made[node] = self._copy(node)
        outputs = []
        for node in self._draft.outputs:
            if node not in self._made:  # in an inactive region, its source replaces it
                inactive = (r for r in node.meta["regions"] if not r.is_active(self._sample))
                node = next(inactive).source
            outputs.append(self._read(node))
        self._graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        self._graph.lint()
        for node in self._graph.nodes:
            node.meta = {}  # it describes the whole space
        return fx.GraphModule(self._modules, self._graph, class_name="Layer")

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
            original = attribute(self._space, str(node.target))
            self._modules[str(node.target)] = copied(original, self._memo)
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
            if is_open(module):  # taken from the whole model, so that its weights are NNI's
                if self._found is None:
                    model = fixed_model(self._space, self._sample)
                    self._found = counterparts(self._traced, self._sample, model)
                self._modules[path] = _whole(self._found.modules[path])
            else:
                self._modules[path] = copied(module, self._memo)
        args = fx.map_arg(node.args, self._read)
        kwargs = fx.map_arg(node.kwargs, self._read)
        return self._graph.call_module(path, args, kwargs)


def _whole(parts: Mapping[str, nn.Module]) -> nn.Module:
    """Return the module with these parts in NNI's model; a sequence may have been taken apart."""
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
