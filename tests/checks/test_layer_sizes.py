"""Sizes that are told without weights, against layers that were made and took a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import search_spaces
from naspipe.checks.sketched import measure_sizes, sketch
from naspipe.config.blocks import Block, Shared
from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, INITIAL, LayerId, SequenceId
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Frozen, Lag
from naspipe.config.space import Space
from naspipe.jobs.workload import Workload
from naspipe.worker.layers.layer_store import LayerStore
from tests.search_spaces.chain import IMAGES, TEXT

RECIPES = {
    "SGD": Recipe(optimizer="SGD"),
    "momentum": Recipe(optimizer="SGD", optimizer_options={"momentum": 0.9}),
    "Adam": Recipe(optimizer="Adam"),
    "amsgrad": Recipe(optimizer="Adam", optimizer_options={"amsgrad": True}),
    "Adafactor": Recipe(optimizer="Adafactor"),
}


def workload(space: Space, recipe: Recipe) -> Workload:
    def unused(*_: Any) -> Any:
        raise AssertionError("sizes need no data")

    definition = Definition(space=space.name, steps=1, recipe=recipe)
    return Workload(space=space, data=unused, loss=unused, definition=definition)


def real_bytes(space: Space, recipe: Recipe, block: int, candidate: int) -> tuple[int, int]:
    """State and parameters of a layer that was made and took a step, tensor by tensor."""
    layer = LayerStore(space, 0, recipe).make(LayerId(FIRST_STREAM, block, candidate))
    trained = {name: p for name, p in layer.parameters.items() if p.requires_grad}
    gradients = {name: torch.ones_like(p) for name, p in trained.items()}
    layer.write(gradients, SequenceId(0), INITIAL, False, 0, 0.1)

    def total(*kinds: str) -> int:
        return sum(
            -(-value.numel() * value.element_size() // 512) * 512
            for name, value in layer.tensors()
            if name.startswith(kinds)
            and isinstance(value, torch.Tensor)
            and (value.dim() > 0 or not name.startswith("optimizer/"))
        )

    return total("param/", "buffer/", "optimizer/"), total("param/")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["nlp.c3", "cv.c3"])
def test_sizes_are_those_of_real_layers(name: str, recipe: str) -> None:
    space = search_spaces.build(name, "small", TEXT if name == "nlp.c3" else IMAGES)
    table = measure_sizes(workload(space, RECIPES[recipe]))
    last = len(space) - 1
    chosen = [(0, 0), (last, 0), *((block, k) for block in (1, last - 2) for k in (0, 2, 4, 9, 11))]
    for block, candidate in chosen:
        if candidate >= len(space.blocks[block].candidates):
            continue
        state_bytes, parameter_bytes = real_bytes(space, RECIPES[recipe], block, candidate)
        size = table.of(block, candidate)
        assert (size.state_bytes, size.parameter_bytes) == (state_bytes, parameter_bytes)
        made = space.blocks[block].candidates[candidate]()
        assert size.writes_forward == bool(list(made.buffers()))
    if name == "cv.c3":
        assert table.of(1, 0).writes_forward and not table.of(0, 0).writes_forward


def small(rule: Any) -> Space:
    return Space(
        "small",
        [
            Shared("stem", lambda: nn.Linear(300, 10), rule=rule),
            Block([lambda: nn.BatchNorm1d(200), nn.Identity]),
        ],
    )


def test_by_hand() -> None:
    """A weight of 3,000 floats and a bias of 10, twice again for Adam's two moments."""
    table = measure_sizes(workload(small(Lag(2)), Recipe(optimizer="Adam")))
    assert table.of(0, 0) == (3 * (12288 + 512), 12288 + 512, False)
    assert table.of(1, 0) == (3 * (1024 + 1024) + 1024 + 1024 + 512, 2048, True)
    assert table.of(1, 1) == (0, 0, False)


def test_frozen_layers_have_no_optimizer_state() -> None:
    table = measure_sizes(workload(small(Frozen()), Recipe(optimizer="Adam")))
    assert table.of(0, 0) == (12288 + 512, 12288 + 512, False)


def test_nothing_is_initialised_and_nothing_drawn() -> None:
    """A frozen layer of 4 TiB has a size; the generator stays where it was."""

    def huge() -> nn.Module:
        return nn.Linear(1 << 20, 1 << 20, bias=False)

    space = Space("huge", [Shared("huge", huge, rule=Frozen())])
    draws = torch.get_rng_state()
    assert next(sketch(space, 0, 0).parameters()).is_meta
    assert measure_sizes(workload(space, Recipe())).of(0, 0).state_bytes == 4 << 40
    assert torch.equal(torch.get_rng_state(), draws)


class NeedsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(100))
        self.largest = float(self.weight.max())


class TwoViews(nn.Module):
    """Two parameters in one piece of memory of 200 floats."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.zeros(200)
        self.one, self.other = nn.Parameter(both[:100]), nn.Parameter(both[100:])


@pytest.mark.parametrize("make", [NeedsValues, TwoViews])
def test_real_modules_where_sketches_do_not_do(make: type[nn.Module]) -> None:
    space = Space("s", [Block([make])])
    draws = torch.get_rng_state()
    assert not next(sketch(space, 0, 0).parameters()).is_meta
    assert torch.equal(torch.get_rng_state(), draws)
    size = measure_sizes(workload(space, Recipe())).of(0, 0)
    assert size.state_bytes == (512 if make is NeedsValues else 1024)


@pytest.mark.parametrize("make", [lambda: 3, lambda: None])
def test_what_is_no_module(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"layer 0.0: expected its factory to return a torch.nn"):
        measure_sizes(workload(Space("s", [Block([make])]), Recipe()))


@pytest.mark.parametrize("make", [lambda: nn.LazyLinear(4), lambda: nn.LazyBatchNorm1d()])
def test_what_has_no_sizes(make: Any) -> None:
    """The same line as of a stage that makes the layer."""
    said = r"layer 0.1: expected its factory to return a module with sizes, found weight without"
    with pytest.raises(ConfigError, match=said):
        measure_sizes(workload(Space("s", [Block([nn.Identity, make])]), Recipe()))


def test_a_factory_that_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        sketch(Space("s", [Block([lambda: 1 / 0])]), 0, 0)


def test_blocks_of_one_kind_are_looked_at_once(computes_here) -> None:
    made: list[int] = []

    def make() -> nn.Module:
        made.append(1)
        return nn.Linear(2, 2)

    space = Space("s", [Block([make, make], kind="k") for _ in range(9)])
    table = measure_sizes(workload(space, Recipe()))
    assert len(made) == 2
    assert table.of(8, 1) == (1024, 1024, False)
