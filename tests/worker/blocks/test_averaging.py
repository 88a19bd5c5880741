"""What a pass counts in its step's loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.worker.blocks.compute import Averaging, counted_items
from tests.worker.small_parts import workload

LOSS = nn.CrossEntropyLoss()


def sized(sizes):
    def data(seed, number):
        return {"target": torch.zeros(sizes[number], dtype=torch.long)}

    return data


def averaging(data, loss=LOSS):
    recipe = Recipe(passes="accumulate:2", weight="items")
    return Averaging(replace(workload().redefined(recipe=recipe), data=data, loss=loss))


def test_passes_count_by_their_items():
    found = averaging(sized([3, 1, 2, 6]))
    one = torch.ones(())
    assert [float(found.part(one, number)) for number in range(4)] == [0.75, 0.25, 0.25, 0.75]


def test_data_may_say_how_many_items_it_has():
    data = sized([])
    data.items = lambda seed, number: 1 + number
    assert float(averaging(data).part(torch.ones(()), 1)) == pytest.approx(2 / 3)


def test_a_step_without_items():
    with pytest.raises(ConfigError, match="weight=items: expected targets in the batches 0 to 1"):
        averaging(sized([0, 0])).part(torch.ones(()), 0)


def test_what_the_loss_ignores_is_no_item():
    target = torch.tensor([[1, -100], [2, 7]])
    assert counted_items(target, LOSS) == 3
    assert counted_items(target, nn.CrossEntropyLoss(ignore_index=7)) == 3
    assert counted_items(target.float(), LOSS) == 4
    assert counted_items(target, nn.MSELoss()) == 4
