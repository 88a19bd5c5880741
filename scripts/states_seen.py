"""What states tasks and layers go through, seen in simulated pipelines.

Nothing here knows which state may follow which. Small pipelines of every kind run on the virtual
clock; after each event the states are read off the controllers and the ledgers.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from naspipe.config.ids import LayerId, StageId, StreamId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Lag
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.config.wiring import CHAIN, PLAIN, StreamWiring, Tap, TapRole, Wiring
from naspipe.engine.builder import build_admission, build_controller, new_history
from naspipe.engine.commands import Command
from naspipe.engine.controller import StageController
from naspipe.engine.events import Event, Priorities, Task, TaskKind, WriteFinished
from naspipe.engine.ledger import Ledger
from naspipe.engine.residency import ResidencyManager
from naspipe.engine.work import Progress, Work
from naspipe.plan.costs import LayerSize
from naspipe.plan.virtual_driver import simulate
from scripts.paper.costs import RandomCosts

BLOCKS, SUBNETS, SEEDS = 6, 24, 16
NOWHERE, GONE = "[*]", "retired"

Seen = dict[tuple[str, str], set[str]]
"""Causes, by the state before and the state after."""


@dataclass(frozen=True)
class Drawings:
    """What was seen so far."""

    forwards: Seen = field(default_factory=lambda: defaultdict(set))
    backwards: Seen = field(default_factory=lambda: defaultdict(set))
    layers: Seen = field(default_factory=lambda: defaultdict(set))
    shared: Seen = field(default_factory=lambda: defaultdict(set))


class WatchedController:
    """A controller whose tasks are looked at whenever one of them may have changed its state."""

    def __init__(self, controller: StageController, drawings: Drawings) -> None:
        self._controller = controller
        self._drawings = drawings
        self._known: dict[Task, str] = {}
        self._written: dict[tuple[StreamId, int], set[int]] = defaultdict(set)
        self._cause = ""
        ready: Any = controller._ready
        ready.offer, ready.begin = self._looking(ready.offer), self._looking(ready.begin)

    def handle(self, event: Event) -> list[Command]:
        """See :class:`StageController`."""
        self._cause = type(event).__name__
        if isinstance(event, WriteFinished):
            layer = event.layer
            self._written[layer.stream, event.sequence_id].add(layer.block)
        commands = self._controller.handle(event)
        self._look()
        return commands

    @property
    def unfinished(self) -> list[str]:
        """See :class:`StageController`."""
        return self._controller.unfinished

    def _looking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            result = method(*given)
            self._look()
            return result

        return called

    def _look(self) -> None:
        states = {
            work.task: self._state(progress, work)
            for progress in self._controller._subnets.values()
            for work in progress.works()
            if work.tickets
        }
        gone = {task: GONE for task in self._known if task not in states}
        for task, state in (states | gone).items():
            before = self._known.get(task, NOWHERE)
            if state != before:
                is_forward = task.kind is TaskKind.FORWARD
                drawing = self._drawings.forwards if is_forward else self._drawings.backwards
                drawing[before, state].add(self._cause)
        self._known = states

    def _state(self, progress: Progress, work: Work) -> str:
        ready = self._controller._ready
        if work is ready.running:
            return "running" if self._controller._commanded else "chosen"
        if work.is_queued:
            return "ready"
        if work.todo:
            if CHAIN in work.missing:
                return "waits for the chain"
            return "waits for a tap or a field" if work.missing else "waits for a version"
        return self._state_after(progress, work)

    def _state_after(self, progress: Progress, work: Work) -> str:
        """Of a task whose blocks are all computed."""
        if work.task.kind is TaskKind.FORWARD:
            return "computed"
        subnet = progress.subnet
        sections = self._controller._wiring.of(subnet.stream).sections(len(subnet.chain))
        own = sections[work.task.section]
        unwritten = {block for block in progress.tickets if block in own}
        unwritten -= self._written[subnet.stream, subnet.sequence_id]
        if not unwritten:
            return "written"
        if progress.holds:
            return "held by a gate"
        return "being written" if unwritten & progress.writing else "owes WRITEs"


class WatchedManager(ResidencyManager):
    """A residency manager whose ledger is looked at after every entry in it."""

    def __init__(self, budget_bytes: int, sizes: Any, drawings: Drawings) -> None:
        super().__init__(budget_bytes, sizes, permanent=((0, 0),))
        self._drawings = drawings
        ledger = self.ledger
        causes = {
            "load": "LoadLayer", "loaded": "LayerLoaded", "save": "SaveLayer",
            "saved": "LayerSaved", "evict": "EvictLayer", "pin": "RunTask or WriteLayer",
            "unpin": "BlockFinished or WriteFinished",
        }  # fmt: skip
        for name, cause in causes.items():
            setattr(ledger, name, self._looking(ledger, getattr(ledger, name), cause))

    def _looking(
        self, ledger: Ledger, method: Callable[..., None], cause: str
    ) -> Callable[..., None]:
        def called(layer: LayerId, *given: Any, **named: Any) -> None:
            before = layer_state(ledger, layer)
            method(layer, *given, **named)
            after = layer_state(ledger, layer)
            if after != before:
                is_shared = ledger._find(layer).is_permanent
                drawing = self._drawings.shared if is_shared else self._drawings.layers
                drawing[before, after].add(cause)

        return called


def layer_state(ledger: Ledger, layer: LayerId) -> str:
    """A layer's entry in words; how many pins it has is left out."""
    entry = ledger._find(layer)
    marks = ["in use"] if entry.pins else []
    marks += ["dirty"] if entry.is_dirty else []
    marks += ["being saved"] if entry.is_saving else []
    return ", ".join([entry.state.value, *marks])


class Sizes:
    """One byte a layer; every other candidate's forward changes its buffers."""

    def of(self, block: int, candidate: int, stream: int = 0, /) -> LayerSize:
        """See :class:`naspipe.engine.ports.Sizes`."""
        return LayerSize(1, 1, bool(candidate % 2))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of pipeline."""

    streams: int = 1
    order: str = "paper"
    moves: bool = False
    """Every step has a partition of its own, so layers move."""
    starts_partly_clear: bool = True
    steps: Steps = ONE_PASS
    wiring: Wiring = PLAIN
    budget: int = 0


CASES = (
    Case(),
    Case(starts_partly_clear=False, moves=True),
    Case(order="critical-path", moves=True),
    Case(steps=Steps(2, is_gated=True)),
    Case(steps=Steps(3, distills=True)),
    Case(budget=4),
    Case(budget=3, moves=True),
    Case(wiring=Wiring(streams=(StreamWiring(late_fields=((5, "target"),)),))),
    Case(wiring=Wiring(streams=(StreamWiring(objectives=(2,)),)), moves=True),
    Case(
        streams=2,
        wiring=Wiring(
            streams=(StreamWiring(), StreamWiring(is_trained=False, rank=1)),
            taps=(Tap((StreamId(1), 5), (StreamId(0), 5), TapRole.LESSON),),
        ),
    ),
)
"""Between them they use every port of the controller."""


def watch(case: Case, seed: int, drawings: Drawings) -> None:
    """Run one pipeline of two stages to its end, and note what is seen."""
    draw = random.Random(seed)
    rules = [[Lag(2), *[Exact()] * (BLOCKS - 1)]] * case.streams
    chains = [
        [[0, *(draw.randrange(3) for _ in range(BLOCKS - 1))] for _ in range(SUBNETS)]
        for _ in rules
    ]
    bounds = [draw.choice((2, 3, 4)) if case.moves else 3 for _ in range(SUBNETS)]
    history = new_history(rules, case.wiring)

    def admitted(stream: StreamId, y: int) -> Any:
        subnet = Subnet(stream, y, tuple(chains[stream][y]))
        partition = Partition((0, bounds[case.steps.step(y)], BLOCKS))
        priorities = Priorities(*(tuple(range(n, n + BLOCKS)) for n in (y % 3, y % 2)))
        return subnet, partition, priorities, case.wiring.of(stream).is_trained

    def admissions() -> Any:
        return [build_admission("csp", SUBNETS, window=6, steps=case.steps) for _ in rules]

    controllers: Any = [
        WatchedController(
            build_controller(
                StageId(stage), rules, order=case.order, history=history, wiring=case.wiring,
                steps=case.steps, starts_partly_clear=case.starts_partly_clear,
                residency=WatchedManager(case.budget, Sizes(), drawings) if case.budget else None,
            ),
            drawings,
        )
        for stage in range(2)
    ]  # fmt: skip
    simulate(admitted, controllers, RandomCosts(seed), admissions)


def drawn() -> Drawings:
    """What all pipelines show."""
    drawings = Drawings()
    for case in CASES:
        for seed in range(SEEDS):
            watch(case, seed, drawings)
    return drawings
