"""Candidates of blocks that the profile measures, each with the inputs that it has in a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from statistics import median

import torch

from naspipe.config.errors import ConfigError, NaspipeError
from naspipe.config.ids import SequenceId
from naspipe.config.rules import MomentumUpdate
from naspipe.config.user_code import users_code
from naspipe.machine.ports import Clock
from naspipe.plan.costs import LayerCost
from naspipe.worker.blocks.forward_only import forward_only
from naspipe.worker.blocks.segment import Segment
from naspipe.worker.blocks.specs import SegmentSpec, Tensors
from naspipe.worker.blocks.split_backward import SplitBackward
from naspipe.worker.layers.bound_layer import BoundLayer, Gradients
from naspipe.worker.layers.stored_layer import StoredLayer, follow

_REFUSAL = "saved tensor hooks"
"""Part of the error message of ``torch.func.grad`` and similar functions, which refuse hooks."""


class ProbeError(NaspipeError):
    """A layer could not be measured; the message names it."""

    def __init__(self, label: str, cause: Exception) -> None:
        self.cause = cause
        super().__init__(f"the profile of layer {label}")


@contextmanager
def measuring(label: str) -> Iterator[None]:
    """Convert exceptions, except refusals, to a ProbeError that names the measured layer."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ProbeError(label, error) from error


@contextmanager
def refusing(space: str, expected: str) -> Iterator[None]:
    """Convert exceptions of user code to a one-line ConfigError with the layer's name.

    Args:
        space: name of the space.
        expected: the message up to and including ``found``.
    """
    with users_code(f"space {space}: {expected}"):
        try:
            yield
        except ProbeError as error:
            with users_code(f"space {space}, {error}: {expected}"):
                raise error.cause from None


@dataclass(slots=True)
class Probe(ABC):
    """One candidate, with the times of every round in nanoseconds."""

    spec: SegmentSpec
    stored: StoredLayer
    inputs: Tensors
    make_ns: int
    clock: Clock
    activation_bytes: int = field(default=0, init=False)
    samples: list[Sequence[int | None]] = field(default_factory=list, init=False)
    """Times of each round: forward, backward and write, then the two parts of a split backward."""

    @abstractmethod
    def warm(self) -> Tensors:
        """Run the first round, which is not measured; return the outputs."""

    @abstractmethod
    def run(self) -> None:
        """Measure one round."""

    @property
    def why_whole(self) -> str:
        """Why a backward cannot be split; empty if it can, or if there is no backward."""
        return ""

    def cost(self) -> LayerCost:
        columns = zip_longest(*self.samples)
        rows = [[value for value in column if value is not None] for column in columns]
        forward, backward, write, *split = (int(median(row)) for row in rows)
        if self.why_whole:
            split = []
        return LayerCost(forward, backward, write, self.make_ns, self.activation_bytes, *split)


@dataclass(slots=True)
class TrainedProbe(Probe):
    """A candidate of a stream that is trained."""

    keeps_graph: bool
    option: int
    split: SplitBackward = field(default_factory=SplitBackward, init=False)
    is_split: bool = field(default=False, init=False)
    """True if the backward can be split; set by the first round."""

    def warm(self) -> Tensors:
        """See :class:`Probe`; this round also measures the memory kept for the backward."""
        kept = _Kept(self.inputs, self.stored)
        segment = self._segment()
        try:
            with kept.watch():
                outputs = segment.forward()
        except RuntimeError as error:
            if _REFUSAL not in str(error):
                raise
            outputs = segment.forward()  # its saved tensors are not seen, and do not count
        self.activation_bytes = kept.nbytes(self.keeps_graph)
        segment.backward(tuple(torch.ones_like(output) for output in outputs), self.split)
        self.is_split = self.split.is_proven or segment.owed is not None
        self._write(_gradients(segment))
        return outputs

    def run(self) -> None:
        """Measure one round; every second one has a split backward, if its bits are the same."""
        segment, clock = self._segment(), self.clock
        split = self.split if self.is_split and len(self.samples) % 2 else None
        marks = [clock.mark()]
        outputs = segment.forward()
        marks.append(clock.mark())
        segment.backward(tuple(torch.ones_like(output) for output in outputs), split)
        if self.why_whole:
            split = None  # this backward was not split
        marks.append(clock.mark())
        gradients = _gradients(segment)
        marks.append(clock.mark())
        self._write(gradients)
        marks.append(clock.mark())
        forward, backward, owed, write = clock.between_ns(marks)
        self.samples.append(
            (forward, None, write, backward, owed) if split else (forward, backward, write)
        )

    @property
    def why_whole(self) -> str:
        return self.split.why_whole

    def _segment(self) -> Segment:
        bound: BoundLayer = self.stored.bind(self.stored.version)
        return Segment(self.spec, bound, self.inputs, self.keeps_graph)

    def _write(self, gradients: Gradients) -> None:
        version = SequenceId(self.stored.version + 1)
        step = self.stored.own_step.every - 1  # a step that changes the layer
        options = frozenset([self.option])
        self.stored.write(gradients, version, self.stored.version, False, step, 0.0, options)


def _gradients(segment: Segment) -> Gradients:
    found = segment.take_gradients()
    return found if segment.owed is None else {**found, **segment.owed.compute()}


@dataclass(slots=True)
class ForwardProbe(Probe):
    """A candidate of a stream that has only forwards, whose layers may follow others."""

    update: MomentumUpdate | None

    def warm(self) -> Tensors:
        """See :class:`Probe`; a pass keeps only its inputs."""
        storages = (tensor.untyped_storage() for tensor in self.inputs)
        self.activation_bytes = sum({s.data_ptr(): s.nbytes() for s in storages}.values())
        return self._forward()

    def run(self) -> None:
        marks = [self.clock.mark()]
        self._forward()
        marks += [self.clock.mark()] * 2
        if self.update is not None:
            follow(self.stored, self.stored, self.update, 1.0)
        marks.append(self.clock.mark())
        self.samples.append(self.clock.between_ns(marks))

    def _forward(self) -> Tensors:
        bound = self.stored.bind(self.stored.version)
        return forward_only(self.spec, bound, self.inputs, self.stored.module.training)[0]


class _Kept:
    """The memory that one forward keeps for its backward; each storage counts once."""

    def __init__(self, inputs: Tensors, stored: StoredLayer) -> None:
        state = chain(stored.module.parameters(), stored.module.buffers())
        self._state = {tensor.untyped_storage().data_ptr() for tensor in state}
        self._inputs = {
            storage.data_ptr(): storage.nbytes()
            for storage in (tensor.untyped_storage() for tensor in inputs)
        }
        self._saved: dict[int, torch.UntypedStorage] = {}

    def watch(self) -> AbstractContextManager[None]:
        watched: AbstractContextManager[None] = torch.autograd.graph.saved_tensors_hooks(
            self._see, lambda tensor: tensor
        )
        return watched

    def nbytes(self, keeps_graph: bool) -> int:
        """Return the bytes of the inputs and, if the graph is kept, of saved tensors."""
        saved = (storage.nbytes() for storage in self._saved.values()) if keeps_graph else ()
        return sum(self._inputs.values()) + sum(saved)

    def _see(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self._inputs and not self._is_state(tensor, address):
            self._saved[address] = storage  # kept alive, so that the address is not reused
        return tensor

    def _is_state(self, tensor: torch.Tensor, address: int) -> bool:
        """Return True for a tensor of the layer; stale weights are copies, which are leaves."""
        root = tensor._base if tensor._base is not None else tensor
        return address in self._state or (root.is_leaf and root.requires_grad)
