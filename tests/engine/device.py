"""A stage with a device, driven at random: what the manager commands is carried out and checked.

Contents are numbers. ``truth`` holds what a layer should be; a copy that was read while its
source was written is TORN. Nothing here looks into the manager.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

from naspipe.config.ids import AccessKind, LayerId
from naspipe.engine.commands import EvictLayer, LoadLayer, SaveLayer
from naspipe.engine.predictor import Drawn, Forecast
from naspipe.engine.residency import ResidencyManager

TORN = -1
FORWARD, BACKWARD, WRITE = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE


class Size(NamedTuple):
    state_bytes: int
    writes_forward: bool = False


@dataclass
class Sizes:
    """Sizes by (block, candidate); an integer stands for that many bytes."""

    table: dict[tuple[int, int], Size]

    def of(self, block, candidate, stream=0):
        size = self.table[block, candidate]
        return Size(size) if isinstance(size, int) else size


@dataclass
class Case:
    """``runs`` holds (layer, kind) pairs; WRITE stands for a backward with its WRITE."""

    sizes: Sizes
    permanent: frozenset[int]
    budget: int
    runs: list[list[tuple[LayerId, AccessKind]]]
    prefetches: bool = True
    max_loads: int = 2
    is_accurate: bool = True
    moves: bool = False

    def manager(self):
        return ResidencyManager(
            self.budget,
            self.sizes,
            {(0, block) for block in self.permanent},
            prefetches=self.prefetches,
            max_loads=self.max_loads,
        )


@st.composite
def cases(draw, **fixed):
    """Any sizes and runs; a budget from the least accepted to more than everything."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    layers = [LayerId(0, b, c) for b, count in enumerate(counts) for c in range(count)]
    size = st.builds(Size, st.integers(0, 9), st.booleans())
    sizes = Sizes({layer[1:]: draw(size) for layer in layers})
    permanent = draw(st.frozensets(st.integers(0, len(counts) - 1)))
    use = st.tuples(st.sampled_from(layers), st.sampled_from(AccessKind))
    runs = draw(st.lists(st.lists(use, min_size=1, max_size=5), min_size=1, max_size=12))
    rows = [(layer.block in permanent, sizes.of(*layer[1:]).state_bytes) for layer in layers]
    least = sum(b for stays, b in rows if stays) + max((b for p, b in rows if not p), default=0)
    fields = {
        "budget": least + draw(st.integers(0, 30)),
        "prefetches": draw(st.booleans()),
        "max_loads": draw(st.integers(1, 3)),
        "is_accurate": draw(st.booleans()),
        "moves": draw(st.booleans()),
    }
    return Case(sizes, permanent, runs=runs, **{**fields, **fixed})


@dataclass
class Device:
    """Copies of layers, one lane each way, and every rule about them."""

    case: Case
    host: dict[LayerId, int] = field(default_factory=Counter)
    copies: dict[LayerId, int] = field(default_factory=dict)
    loading: deque[LayerId] = field(default_factory=deque)
    saving: deque[LayerId] = field(default_factory=deque)
    held: Counter[LayerId] = field(default_factory=Counter)
    out_of_date: set[LayerId] = field(default_factory=set)
    torn: set[LayerId] = field(default_factory=set)
    loads: Counter[LayerId] = field(default_factory=Counter)

    @property
    def used(self):
        layers = [*self.copies, *self.loading]
        return sum(self.case.sizes.of(*layer[1:]).state_bytes for layer in layers)

    def carry_out(self, commands):
        for command in commands:
            layer = command.layer
            match command:
                case LoadLayer():
                    assert layer not in self.copies and layer not in self.loading
                    self.loading.append(layer)
                    self.loads[layer] += 1
                    assert self.used <= self.case.budget, "over budget"
                    assert len(self.loading) <= self.case.max_loads
                case SaveLayer():
                    assert layer in self.copies and layer not in self.saving
                    assert not self.held[layer]
                    self.saving.append(layer)
                case EvictLayer():
                    assert not self.held[layer] and layer not in self.saving
                    assert layer.block not in self.case.permanent
                    content = self.copies.pop(layer)
                    assert content == self.host[layer] or layer in self.out_of_date, "bytes lost"
                    self.out_of_date.discard(layer)

    def land(self):
        layer = self.loading.popleft()
        self.copies[layer] = TORN if layer in self.out_of_date else self.host[layer]
        return layer

    def finish_save(self, touched):
        layer = self.saving.popleft()
        is_torn = layer in self.torn or layer in touched
        self.host[layer] = TORN if is_torn else self.copies[layer]
        self.torn.discard(layer)
        return layer


class Stage:
    """Runs a case to its end; every happening comes at a random moment."""

    def __init__(self, case, draw, has_token=False):
        self.case, self.draw, self.has_token = case, draw, has_token
        self.manager = case.manager()
        self.device = Device(case)
        self.truth: Counter[LayerId] = Counter()
        self.runs = deque(deque(run) for run in case.runs)
        self.running: list[tuple[LayerId, AccessKind]] = []
        self.away: set[LayerId] = set()
        self.begun, self.waits = 0, 0
        self.trace: list[list] = []

    def run(self):
        self.tell()
        while happenings := self.possible():
            getattr(self, self.draw.choice(happenings))()
            self.tell()
        return self

    def possible(self):
        device = self.device
        names = []
        names += ["block"] if self.running else []
        names += ["land"] if device.loading else []
        names += ["save"] if device.saving else []
        names += ["arrive"] if self.away else []
        is_moving = self.case.moves and self.runs and self.draw.random() < 0.3
        names += ["leave", "hurry"] if is_moving else []
        if self.runs and not names and not self.case.moves:
            raise AssertionError("stuck: the stage waits and nothing is under way")
        return names or (["leave"] if self.runs else [])

    def tell(self):
        """Begin what can begin, then let the manager plan."""
        is_demanded = False
        if not self.running and self.runs:
            run = self.runs[0]
            here = []
            for layer, _ in run:
                if layer in self.away:
                    break
                here.append(layer)
            count = self.manager.acquire(here)
            self.running = [run.popleft() for _ in range(count)]
            self.device.held.update(layer for layer, _ in self.running)
            is_demanded = bool(here) and not count
            self.waits += is_demanded
            self.begun += bool(count)
            if not run and count:
                self.runs.popleft()
        commands = self.plan(is_demanded)
        self.check_victims(commands)
        self.device.carry_out(commands)
        if is_demanded and not self.device.loading and not self.device.saving:
            raise AssertionError("stuck: a layer is demanded and nothing is under way")
        again = self.plan(is_demanded)
        assert list(again) == [], "a second look found more"
        self.trace.append(list(commands))

    def plan(self, is_demanded):
        token = (self.begun, tuple(sorted(self.away))) if self.has_token else None
        return self.manager.plan(self.look_ahead, is_demanded, token)

    def check_victims(self, commands):
        """What gives way to a load is needed later than the layer loaded, or not at all."""
        places = {layer: -place for place, layer in enumerate(reversed([*self.forecast()]))}
        gone = []
        for command in commands:
            if isinstance(command, EvictLayer) and command.layer not in self.device.out_of_date:
                gone.append(command.layer)
            if isinstance(command, LoadLayer):
                assert all(places.get(x, 1) > places[command.layer] for x in gone), "needed sooner"
                gone.clear()
        assert not gone, "evicted for nothing"

    def look_ahead(self):
        return Forecast((), Drawn([each] for each in self.forecast()), {*self.forecast()})

    def forecast(self):
        """The layers of every use still to come; beyond the first run, perhaps in disorder."""
        coming = [layer for layer, _ in self.running]
        rest = [layer for run in self.runs for layer, _ in run]
        if not self.case.is_accurate:
            first, rest = rest[:1], rest[1:]
            rest = sorted(rest, key=lambda layer: (hash((layer, self.begun)), layer))
            coming += first
        yield from (*coming, *rest)

    def size(self, layer):
        return self.case.sizes.of(*layer[1:])

    def touches(self, layer, kind):
        return self.size(layer).state_bytes and (kind is WRITE or self.size(layer).writes_forward)

    def block(self):
        layer, kind = self.running.pop(0)
        device = self.device
        if self.size(layer).state_bytes:
            assert device.copies[layer] == self.truth[layer], f"{layer} is not what it should be"
        if self.touches(layer, kind):
            if kind is not BACKWARD:
                self.truth[layer] += 1
                device.copies[layer] = self.truth[layer]
            device.torn |= {layer} & set(device.saving)
        device.held[layer] -= 1
        self.manager.release(layer, kind)

    def land(self):
        self.manager.on_loaded(self.device.land())

    def save(self):
        touched = {layer for layer, kind in self.running if self.touches(layer, kind)}
        self.manager.on_saved(self.device.finish_save(touched))

    def arrive(self):
        layer = self.draw.choice(sorted(self.away))
        self.away.remove(layer)
        self.device.host[layer] = self.truth[layer]
        self.device.carry_out(self.manager.arrive(layer))

    def leave(self):
        """Another stage takes over a layer that is in host memory, and writes it."""
        device = self.device
        layers = [LayerId(0, *key) for key in self.case.sizes.table]
        free = [
            layer
            for layer in sorted(set(layers) - self.away)
            if layer.block not in self.case.permanent
            and not device.held[layer]
            and not self.manager.needs_save(layer)
        ]
        if free:
            layer = self.draw.choice(free)
            assert (
                not self.truth[layer]
                or device.host[layer] == self.truth[layer]
                or (not self.size(layer).state_bytes)
            ), "handed over before it was saved"
            self.away.add(layer)
            self.truth[layer] += 1
            if layer in device.copies or layer in device.loading:
                device.out_of_date.add(layer)
            device.carry_out(self.manager.forget(layer))

    def hurry(self):
        layers = [LayerId(0, *key) for key in self.case.sizes.table]
        self.manager.save_first(self.draw.choice(layers))
