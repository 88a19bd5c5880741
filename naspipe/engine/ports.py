"""The small protocols through which behaviour plugs into the controller.

========================= ==========================================================================
:class:`SyncPolicy`        :class:`~naspipe.engine.policies.CausalPolicy`,
                           :class:`~naspipe.engine.policies.BulkPolicy`,
                           :class:`~naspipe.engine.policies.AsynchronousPolicy`
:class:`Admission`         ``AdmissionWindow``, ``BulkAdmission`` and ``StepAdmission`` of
                           :mod:`naspipe.engine.admission`
:class:`DispatchOrder`     those of :mod:`naspipe.engine.orders`
:class:`Ahead`             :class:`~naspipe.engine.predictor.Forecast`
:class:`Residency`         :class:`~naspipe.engine.residency.ResidencyManager`,
                           :class:`~naspipe.engine.residency.AllResident`
========================= ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from naspipe.config.ids import FIRST_STREAM, AccessKind, LayerId, SequenceId, StreamId, Version
from naspipe.config.rules import OwnStep, Rule
from naspipe.config.steps import Steps
from naspipe.engine.commands import Command
from naspipe.engine.events import Task


class SyncPolicy(Protocol):
    """Which version of a layer a subnet reads: the synchronisation policy of a run."""

    @property
    def steps(self) -> Steps:
        """How subnets form steps. Of one step's users of a layer, only the last one's WRITE makes
        a version that others read."""
        ...

    @property
    def binds_late(self) -> bool:
        """Whether a subnet reads what is newest when its forward begins on a stage, and WRITEs
        follow one another as they come; otherwise its place in the stream decides both."""
        ...

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """The version ``reader`` asks for.

        ``users`` holds, in rising order, the sequence IDs of the layer's earlier users,
        from the oldest that any later reader can ask for, of each step the last one only;
        INITIAL stands for "none yet".
        """
        ...

    def own_step(self, rule: Rule) -> OwnStep:
        """How the optimizer of a layer steps, and what its readers foresee."""
        ...

    def makes_version(self, rule: Rule, version: Version) -> bool:
        """Whether a version differs from the one before, and subnets that are not yet admitted may
        ask for it."""
        ...

    def is_writer(self, rule: Rule) -> bool:
        """Whether the users of a layer with this rule WRITE it."""
        ...

    def keeps_versions(self, rule: Rule) -> bool:
        """Whether a layer is written while an older version of it is still read: from a copy.

        Otherwise its WRITE waits until nobody reads the version that it replaces.
        """
        ...


class Admission(Protocol):
    """Which subnets of one stream may be under way on a stage."""

    @property
    def is_finished(self) -> bool:
        """Whether every subnet of the stream is retired."""
        ...

    @property
    def oldest(self) -> int:
        """The oldest sequence ID that is not retired."""
        ...

    @property
    def next(self) -> int:
        """The first sequence ID that was not admitted."""
        ...

    def hold(self) -> int:
        """Admit nothing more of one's own accord: the stream is about to be cut short.

        Returns the first sequence ID that was not admitted.
        """
        ...

    def stop(self, num_subnets: int) -> range:
        """Cut the stream short; returns what is left to admit. Nothing behind that was admitted."""
        ...

    def learn(self, num_known: int) -> range:
        """So many subnets are known so far; returns the sequence IDs to admit now."""
        ...

    def open(self) -> range:
        """Sequence IDs to admit now, in order and without gaps."""
        ...

    def reach(self, sequence_id: int) -> range:
        """Sequence IDs to admit so that this one is: a peer with an older view sent work for it."""
        ...

    def retire(self, sequence_id: int) -> range:
        """A subnet is done here; returns the sequence IDs to admit now."""
        ...


class DispatchOrder(Protocol):
    """Which of several clear tasks a stage runs first; a matter of time, never of results."""

    @property
    def max_run(self) -> int | None:
        """Blocks to run before the stage chooses anew; None for as many as are clear."""
        ...

    def key(self, task: Task, priority: int) -> tuple[Any, ...]:
        """A complete sort key: no two tasks of a stage share it; the least runs first.

        ``priority`` is that of the task's next block, from the subnet's admission.
        """
        ...


class Ahead(Protocol):
    """Layers in the order of their next use."""

    def __iter__(self) -> Iterator[LayerId]:
        """Each layer once."""
        ...

    def may_use(self, layer: LayerId) -> bool:
        """Whether it may be among them; False where no subnet has a block left to run on it."""
        ...

    def next_uses(self, layers: Collection[LayerId], reach: int) -> Mapping[LayerId, int]:
        """How far ahead each of these is used, as far as that is less than ``reach``."""
        ...


class Residency(Protocol):
    """What of a stage's layers is on its device: the paper's context manager."""

    @property
    def limits_memory(self) -> bool:
        """Whether there is a budget: then a gradient is used up before the next one is made."""
        ...

    def acquire(self, layers: Sequence[LayerId]) -> int:
        """Pin the leading layers that are on the device; returns how many they are."""
        ...

    def release(self, layer: LayerId, kind: AccessKind) -> None:
        """One pinned use is over."""
        ...

    def plan(
        self,
        look_ahead: Callable[[], Ahead],
        is_demanded: bool = False,
        token: Hashable = None,
    ) -> Sequence[Command]:
        """Loads, saves and evictions to begin now.

        ``look_ahead`` makes the forecast; ``is_demanded`` says that the stage stands still until
        the first layer of it is on the device; ``token`` differs whenever the forecast does, but
        for uses that are over by now.
        """
        ...

    def on_loaded(self, layer: LayerId) -> None:
        """A layer is on the device."""
        ...

    def on_saved(self, layer: LayerId) -> None:
        """A save is over."""
        ...

    def needs_save(self, layer: LayerId) -> bool:
        """Whether host memory does not hold the newest version yet."""
        ...

    def save_first(self, layer: LayerId) -> None:
        """Another stage waits for this layer: save it before others."""
        ...

    def forget(self, layer: LayerId) -> Sequence[Command]:
        """A layer leaves for another stage: what is on the device is stale from now on."""
        ...

    def arrive(self, layer: LayerId) -> Sequence[Command]:
        """A layer came from another stage: what is on the device is stale."""
        ...


class Size(Protocol):
    """What one layer takes on the device."""

    @property
    def state_bytes(self) -> int:
        """Parameters, buffers and optimizer state."""
        ...

    @property
    def writes_forward(self) -> bool:
        """Whether its forward may change its buffers."""
        ...


class Sizes(Protocol):
    """The size of every layer: exact, and the same for the whole run."""

    def of(self, block: int, candidate: int, stream: StreamId = FIRST_STREAM, /) -> Size:
        """The size of one candidate of a block of a stream's chain."""
        ...
