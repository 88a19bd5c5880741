"""The quick profile: what is measured, how often, in what order, and what a pass keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from naspipe.config.blocks import Block, Shared
from naspipe.config.definition import Definition
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.config.space import Space
from naspipe.jobs.workload import Workload
from naspipe.plan.costs import LayerCost
from naspipe.profiling import profiler
from naspipe.profiling.probes import TrainedProbe
from naspipe.profiling.profiler import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    affordable,
    measuring_order,
    profile,
)
from naspipe.worker.layers.stored_layer import StoredLayer

BATCH = {"input": torch.ones(4, 8), "target": torch.zeros(4, 8)}
LONG = 1e6
"""Seconds that are never over."""


def workload(space: Space, **changes: Any) -> Workload:
    recipe = Recipe(**changes.pop("recipe", {}))
    return Workload(
        space=space,
        data=lambda seed, sequence_id: BATCH,
        loss=nn.MSELoss(),
        definition=Definition(space=space.name, steps=1, recipe=recipe),
        **changes,
    )


class Noted(nn.Module):
    """A layer that notes each of its forwards."""

    def __init__(self, notes: list[Any], name: Any) -> None:
        super().__init__()
        self.notes, self.name = notes, name
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.notes.append(self.name)
        out: torch.Tensor = self.linear(x)
        return out


def noted_space(notes: list[Any], counts: Sequence[int]) -> Space:
    def factory(name: Any) -> Any:
        return lambda: Noted(notes, name)

    blocks = [
        Block([factory((index, k)) for k in range(count)], kind=f"k{index}")
        for index, count in enumerate(counts)
        for _ in range(2)
    ]
    return Space("noted", blocks)


def test_everything_is_measured_in_rounds() -> None:
    notes: list[Any] = []
    space = noted_space(notes, [20, 3])
    table = profile(workload(space), LONG)
    layers = [(0, k) for k in range(20)] + [(1, k) for k in range(3)]
    assert set(table.costs) == {(2 * i + twin, k) for i, k in layers for twin in range(2)}
    assert table.of(0, 7) == table.of(1, 7)
    first = 19
    start = first * (1 + MIN_ROUNDS)
    later = notes[start + 4 :]
    assert set(notes[:first]) == set(notes[first : 2 * first])  # one warming, then rounds
    assert Counter(notes[first:start]) == dict.fromkeys(notes[:first], MIN_ROUNDS)
    assert set(notes[start : start + 4]) == set(layers) - set(notes[:first])
    # Each round measures everything once, old and new alike, until the newest have enough.
    rounds = [later[at : at + 23] for at in range(0, len(later), 23)]
    assert all(Counter(one) == Counter(layers) for one in rounds)
    assert len(rounds) == MAX_ROUNDS


def test_when_the_time_is_over_the_least_is_done() -> None:
    notes: list[Any] = []
    table = profile(workload(noted_space(notes, [40, 3])), 0.0)
    spread = [k * 40 // 16 for k in range(16)]
    assert sorted(k for block, k in table.costs if block == 0) == spread
    assert Counter(notes) == {
        **{(0, k): 1 + MIN_ROUNDS for k in spread},
        **{(1, k): 1 + MIN_ROUNDS for k in range(3)},
    }
    assert table.of(0, 1).forward_ns > 0  # the mean of the others


def test_where_nothing_waits_a_second_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start waits for it; the least is measured however long it takes."""
    monkeypatch.setattr(profiler, "ROUNDS_SECONDS", 0.0)
    notes: list[Any] = []
    profile(workload(noted_space(notes, [4, 3])), LONG)
    assert set(Counter(notes).values()) == {1 + MIN_ROUNDS}


def test_a_short_time_is_short_for_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "affordable", lambda *_: 6)
    table = profile(workload(noted_space([], [40, 40])), 0.0)
    assert Counter(block for block, _ in table.costs) == {0: 19, 1: 19, 2: 19, 3: 19}


def test_what_can_be_afforded() -> None:
    joining = MIN_ROUNDS + 2
    assert affordable(joining * 30.0, 1.0, 10) == 20
    assert affordable(joining * 30.9, 1.0, 10) == 20
    assert affordable(joining * 10.0, 1.0, 10) == 0
    assert affordable(-5.0, 1.0, 10) == 0


@given(st.integers(1, 300))
def test_the_measuring_order(count: int) -> None:
    order = measuring_order(count)
    assert sorted(order) == list(range(count))
    first = sorted(order[:16])
    gaps = [after - before for before, after in zip(first, [*first[1:], count], strict=True)]
    assert first[0] == 0 and max(gaps) - min(gaps) <= 1


def test_medians_leave_slow_moments_out() -> None:
    probe = TrainedProbe(None, None, (), 7, None, True, 0)  # type: ignore[arg-type]
    probe.activation_bytes = 8
    probe.samples = [[10, 1000, 3], [11, 20, 4], [999, 21, 5]]
    assert probe.cost() == LayerCost(11, 21, 4, 7, 8)


def chain_of(*blocks: Block | Shared) -> Space:
    """Those blocks between a first one that makes a (4, 8) input and a last one."""
    return Space("s", [Block([lambda: nn.Linear(8, 8)]), *blocks, Block([lambda: nn.Linear(8, 8)])])


INPUT = 4 * 8 * 4
"""Bytes of a (4, 8) float32 tensor."""


class Square(nn.Module):
    """Saves its weight and buffer (not counted), its input and what it squares."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight * self.scale).square()


class Twice(nn.Module):
    """Its input is saved several times over, as views of one storage."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.view(4, 8) * x.view(8, 4).view(4, 8)


def test_both_parts_of_a_split_backward_are_measured_where_it_can_be_split() -> None:
    """In every other round. The first block has no input that wants a gradient: all of it waits."""
    shared = [Shared(name, lambda: nn.Linear(8, 8)) for name in ("first", "linear")]
    made = Space("s", [*shared, Shared("norm", lambda: nn.LayerNorm(8))])
    table = profile(workload(made))
    first, linear, norm = (cost for _, cost in sorted(table.costs.items()))
    assert first.inputs_ns < first.weights_ns and linear.inputs_ns > 0 < linear.weights_ns
    assert (norm.inputs_ns, norm.weights_ns, linear.owed_ns) == (0, 0, 0)
    assert table.whole == {(2, 0): "no weight of it can be left for later"}


class LateHook(nn.Linear):
    """Puts a hook on a tensor only from its third forward on."""

    forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        y = super().forward(x)
        if self.forwards > 2:
            y.register_hook(lambda gradient: gradient)
        return y


def test_parts_that_were_measured_before_a_hook_came_are_left_out() -> None:
    kind = [lambda: nn.Linear(8, 8), lambda: LateHook(8, 8)]
    table = profile(workload(chain_of(Block(kind, kind="k"), Block(kind, kind="k"))))
    assert all(table.of(block, 0).weights_ns for block in (1, 2))
    assert all(table.of(block, 1).split_ratio == 0 for block in (1, 2))
    why = "its forward puts a hook on a tensor"
    assert table.whole == {(block, 1): why for block in (1, 2)}


@pytest.mark.parametrize(
    ("block", "saved"),
    [
        (Block([nn.Identity]), 0),
        (Block([lambda: nn.Linear(8, 8)]), 0),  # its input, which counts already
        (Block([nn.Sigmoid]), INPUT),  # its output
        (Block([Square]), INPUT),  # the product
        (Block([Twice]), INPUT),  # the first product
        (Shared("one", Square, rule=Frozen()), INPUT),
    ],
    ids=["identity", "linear", "sigmoid", "square", "twice", "frozen"],
)
def test_what_a_pass_keeps(block: Block | Shared, saved: int) -> None:
    kept = profile(workload(chain_of(block)), 0.0).of(1, 0).activation_bytes
    assert kept == INPUT + saved
    recomputed = profile(workload(chain_of(block), recompute=True), 0.0).of(1, 0)
    assert recomputed.activation_bytes == INPUT


@pytest.mark.parametrize("rule", [Exact(), Lag(3)])
def test_parameters_do_not_count(rule: Any) -> None:
    """A lagging layer's forward reads copies of them; they are no activations either."""
    stem = Shared("stem", lambda: nn.Linear(8, 500), rule=rule)
    narrow = Shared("narrow", lambda: nn.Linear(500, 8, bias=False), rule=rule)
    table = profile(workload(Space("s", [stem, narrow])), 0.0)
    fields = INPUT  # the batch's, which the first block reads and autograd saves
    assert table.of(0, 0).activation_bytes == fields
    assert table.of(1, 0).activation_bytes == 4 * 500 * 4 + INPUT + INPUT  # loss: output, target


def test_inputs_in_one_storage_count_once() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            both = x * 2
            return both[:2], both[2:]

    class Join(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, y])

    table = profile(workload(chain_of(Block([Halves]), Block([Join])), recompute=True), 0.0)
    assert table.of(2, 0).activation_bytes == INPUT


def test_a_frozen_chain_and_bf16_are_measured() -> None:
    space = chain_of(Shared("one", lambda: nn.Linear(8, 8), rule=Frozen()))
    table = profile(workload(space, recipe={"precision": "bf16", "optimizer": "Adam"}), 0.0)
    assert all(cost.forward_ns > 0 for cost in table.costs.values())


def test_layers_and_inputs_are_where_they_are_measured() -> None:
    """On a GPU: what an optimizer makes in its constructor, and what blocks in host memory make.

    The meta device stands for one.
    """
    meta, seen = torch.device("meta"), []

    def through(batch: Any) -> tuple[torch.Tensor, ...]:
        seen.append(batch["input"].device.type)
        return (batch["input"] + 1,)

    linear = chain_of(Block([lambda: nn.Linear(8, 8)]))
    bench = profiler._Bench(workload(linear, tapped=through), meta)
    assert seen == ["cpu"] and [each.device for each in bench._first] == [meta]
    layer = StoredLayer("layer", Exact(), nn.Linear(8, 8), Recipe(optimizer="SGD"))
    assert layer.optimizer is not None
    state = layer.optimizer.state[layer.parameters["weight"]]
    state |= {"sum": torch.zeros(8, 8), "step": torch.tensor(0.0)}
    bench._adopt(LayerId(FIRST_STREAM, 0, 0), layer)
    assert state["sum"].device == meta and state["step"].device.type == "cpu"
