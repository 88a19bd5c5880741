"""The proof that a chain of layers is bitwise equal to NNI's own model, for sampled architectures.

The architectures are chosen so that together they use every layer of every block. The layers are
those of a run. Their tensors are copied into NNI's model, each into its counterpart; then both
compute the same batch with the same random numbers. Outputs, gradients and updated statistics must
agree in every bit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from naspipe.config.blocks import Shared
from naspipe.config.errors import ConfigError
from naspipe.config.space import AnyBlock
from naspipe.config.user_code import users_code
from naspipe.machine.determinism import deterministic_torch, layer_seed, seed_draws
from naspipe.machine.forking import done_apart
from naspipe.machine.staging import tensor_bytes
from naspipe.nni.counterparts import Counterparts, counterparts, fixed_model
from naspipe.nni.decisions import LabelDecisions
from naspipe.nni.library import Sample
from naspipe.nni.module_equality import difference, tensor_pairs
from naspipe.nni.trace import Traced, attribute

# Architectures that together use every layer


RANDOM = 3
"""Number of random architectures in addition to those that are needed."""


@dataclass(frozen=True, slots=True)
class Cover:
    """Architectures, and the number of the choice blocks' layers that they cover."""

    samples: tuple[Sample, ...]
    covered: int
    layers: int


def cover(decisions: LabelDecisions, most: int) -> Cover:
    """Return architectures that cover ``most`` layers, or all layers; the result is deterministic.

    Each uses layers that no earlier one has, as far as their labels agree, starting from the last
    block, because the layers that a depth omits are at the end; the other labels are drawn.
    """
    draw = random.Random(0)
    left = dict.fromkeys(
        (block, number)
        for block, layers in reversed(list(enumerate(decisions.blocks)))
        for number in range(len(layers.samples))
    )
    total, drawn, samples = len(left), 0, list[Sample]()
    while not samples or (total - len(left) < most and drawn < RANDOM):
        drawn += not left
        # Values of labels that give an architecture the first of the remaining layers, and more.
        wanted: Sample = {}
        for block, number in left:
            wanted |= decisions.blocks[block].wanted(number, wanted) or {}
        sample = {
            label: wanted[label] if label in wanted else draw.choice(options)
            for label, options in decisions.values.items()
        }
        samples.append(sample)
        for used in enumerate(decisions.choices_of(sample)):
            left.pop(used, None)
    return Cover(tuple(samples), total - len(left), total)


# The proof


ROWS = 4
"""Number of rows of a batch that a proof uses, unless the forward needs more."""

Pair = tuple[str, torch.Tensor, torch.Tensor]
"""Name, the layer's tensor, and that of NNI's model."""


@dataclass
class NniProof:
    """Compares a chain with NNI's own models of architectures that together use every layer.

    Args:
        traced: the model space.
        blocks: the blocks of the chain.
        decisions: how architectures become choices.
        fields: batch fields, in the order of the forward's arguments.
        most: number of layers of choice blocks that is enough.
    """

    traced: Traced
    blocks: Sequence[AnyBlock]
    decisions: LabelDecisions
    fields: Sequence[str]
    most: int
    _record: dict[str, Any] | None = None
    _layers: dict[tuple[int, int], Any] = field(default_factory=dict)

    def prove(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compare on a batch what has not been compared yet, and return the record of the proof.

        Raises:
            ConfigError: for the first architecture whose chain is not NNI's model.
        """
        if self._record is None:
            start = time.monotonic()
            inputs = [batch[name] for name in self.fields]
            record = done_apart(
                lambda go_on: self._proved(inputs, go_on), "the proof of its layers"
            )
            self._record = {**record, "seconds": round(time.monotonic() - start, 3)}
        return self._record

    def _proved(self, inputs: list[torch.Tensor], go_on: Callable[[], None]) -> dict[str, Any]:
        chosen = cover(self.decisions, self.most)
        with deterministic_torch(threads=1):
            if all(each.dim() and len(each) > ROWS for each in inputs):
                few = [each[:ROWS].clone() for each in inputs]
                with suppress(Exception), torch.no_grad():
                    # If it cannot compute the whole batch either, that is reported later.
                    self._model(chosen.samples[0])(*few)
                    inputs = few
            for sample in chosen.samples:
                self._compare(sample, inputs)
                go_on()
        return {
            "against": "NNI's own models",
            "architectures": len(chosen.samples),
            "layers_compared": chosen.covered,
            "layers": chosen.layers,
        }

    def _model(self, sample: Sample) -> nn.Module:
        seed_draws(0)
        return fixed_model(self.traced.space, sample)

    def _chain(self, sample: Sample) -> list[Any]:
        """Return the layers of an architecture, each created once."""
        choices = iter(self.decisions.choices_of(sample))
        chain = []
        for position, block in enumerate(self.blocks):
            option = 0 if isinstance(block, Shared) else next(choices)
            key = position, option
            if key not in self._layers:
                seed_draws(layer_seed(0, *key))
                layer = block.candidates[block.candidate(option)]()
                self._layers[key] = block.cut_of(layer, option)
            chain.append(self._layers[key])
        return chain

    def _compare(self, sample: Sample, inputs: Sequence[torch.Tensor]) -> None:
        chain, model = self._chain(sample), self._model(sample)
        found = counterparts(self.traced, sample, model)
        what = f"space {self.traced.name}: expected a first batch that"

        def through_chain(*state: torch.Tensor) -> tuple[torch.Tensor, ...]:
            for layer in chain:
                out = layer(*state)
                state = tuple(out) if isinstance(out, tuple | list) else (out,)
            return state

        try:
            pairs = list(tensor_partners(chain, found))
            load_tensors(pairs)
            for training in (False, True):
                model.train(training)
                for layer in chain:
                    layer.train(training)
                with users_code(f"{what} NNI's own model of {sample!r:.200} can compute, found"):
                    theirs = _run(model, inputs)
                with users_code(f"{what} the chain of {sample!r:.200} can compute, found"):
                    ours = _run(through_chain, inputs)
                if len(ours) != len(theirs):
                    raise DiffersError(f"{len(theirs)} outputs, not {len(ours)}")
                for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                    _check(one, other, f"output {number}", training)
                _check_gradients(pairs, ours, theirs)
                for name, one, other in pairs:
                    _check(one, other, f"{name} after a forward", training)
        except DiffersError as error:
            raise ConfigError(
                f"space {self.traced.name}: expected the chain to be NNI's own model of "
                f"{sample!r:.200}, found {error}; a module that depends on the choice of another "
                f"cannot be a layer of its own"
            ) from None


class DiffersError(Exception):
    """States where a chain and NNI's model differ."""


def tensor_partners(chain: Sequence[Any], found: Counterparts) -> Iterator[Pair]:
    """Yield every tensor of the chain with its counterpart; modules must have been matched."""
    left = dict(found.modules)
    for layer in chain:
        for node in layer.graph.nodes:
            path = str(node.target)
            if node.op == "get_attr":
                yield path, attribute(layer, path), found.tensors[path]
            elif node.op == "call_module" and path in left:
                module = layer.get_submodule(path)
                for part, theirs in left.pop(path).items():
                    ours = module.get_submodule(part)
                    if differs := difference(ours, theirs):
                        raise DiffersError(f"at {path} {differs}")
                    for name, *tensors in tensor_pairs(ours, theirs):
                        yield f"{path}.{part}.{name}".replace("..", "."), tensors[0], tensors[1]
            elif node.op == "call_module" and path not in found.modules:
                raise DiffersError(f"nothing like {path}")
    for path, parts in left.items():
        if any(True for part in parts.values() for _ in part.parameters()):
            raise DiffersError(f"{path}, which no layer has")


def load_tensors(pairs: Sequence[Pair]) -> None:
    """Copy the chain's values to NNI's model; shared tensors must be shared in both."""
    partners: dict[int, int] = {}
    for name, ours, theirs in pairs:
        if partners.setdefault(id(ours), id(theirs)) != id(theirs):
            raise DiffersError(f"two tensors of {name}, which is one in the chain")
        if partners.setdefault(-id(theirs), id(ours)) != id(ours):
            raise DiffersError(f"one tensor of {name}, which is two in the chain")
        with torch.no_grad():
            theirs.copy_(ours)


def _run(compute: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    seed_draws(1)
    out = compute(*(each.clone() for each in inputs))
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def _check_gradients(
    pairs: Sequence[Pair], ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]
) -> None:
    with_gradient = {name: pair for name, *pair in pairs if pair[0].requires_grad}
    sides = []
    for side, outputs in enumerate((ours, theirs)):
        ends = [each for each in outputs if each.requires_grad]
        seed_draws(2)
        weights = [torch.randn_like(each) for each in ends]
        tensors = [pair[side] for pair in with_gradient.values()]
        if not ends or not tensors:
            return
        sides.append(torch.autograd.grad(ends, tensors, weights, allow_unused=True))
    for name, one, other in zip(with_gradient, *sides, strict=True):
        if (one is None) != (other is None):
            raise DiffersError(f"{'a' if one is None else 'no'} gradient of {name}")
        if one is not None:
            _check(one, other, f"the gradient of {name}", True)


def _check(ours: torch.Tensor, theirs: torch.Tensor, what: str, training: bool) -> None:
    mode = "training" if training else "evaluation"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise DiffersError(f"{what} {list(theirs.shape)} {theirs.dtype}, not {list(ours.shape)}")
    if not torch.equal(tensor_bytes(ours), tensor_bytes(theirs)):
        raise DiffersError(f"other bits in {what} in {mode} mode")
