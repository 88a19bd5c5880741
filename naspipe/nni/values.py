"""Which value of a traced model of NNI's is which of the space's forward."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx
from torch import nn

from naspipe.nni.alike import form_of, is_identity
from naspipe.nni.mutables import Sample
from naspipe.nni.trace import either
from naspipe.runtime.devices.tensor_bytes import tensor_bytes


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
