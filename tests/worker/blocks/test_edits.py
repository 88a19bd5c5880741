"""Layers that edit what they are given where torch does not count it: found at their first use."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.config.errors import BlockInputEditedError
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact, Frozen
from naspipe.worker.blocks.forward_only import forward_only
from naspipe.worker.blocks.segment import Segment
from naspipe.worker.blocks.specs import SegmentSpec
from naspipe.worker.layers.stored_layer import StoredLayer


class Edits(nn.Module):
    def __init__(self, how):
        super().__init__()
        self._how = how

    def forward(self, x, *fields):
        if self._how == "data":
            x.data.mul_(2)
        elif self._how == "numpy":
            x.detach().numpy()[0] = 7
        elif self._how == "field":
            fields[0].data.zero_()
        result = x + 1
        if self._how == "freed":
            x.untyped_storage().resize_(0)
        return result


def of(module, rule, *fields):
    stored = StoredLayer("0.1", rule, module, Recipe())
    spec = SegmentSpec(label="0.1", rule=rule, seed=1, precision="fp32", fields=fields)
    return stored, spec, (torch.ones(4, 3),)


@pytest.mark.parametrize("how", ["data", "numpy", "field", "freed"])
def test_what_torch_does_not_count(how):
    what = "a field of its batch" if how == "field" else "its input"
    stored, spec, inputs = of(Edits(how), Exact(), torch.ones(4))
    with pytest.raises(
        BlockInputEditedError, match=rf"^block 0\.1 \(Edits\) changes {what} in place"
    ):
        Segment(spec, stored.bind(stored.version), inputs, keeps_graph=True).forward()


def test_a_teachers():
    stored, spec, inputs = of(Edits("data"), Frozen())
    with pytest.raises(BlockInputEditedError, match="changes its input in place"):
        forward_only(spec, stored.bind(stored.version), inputs, trains=True)


def test_only_the_first_use_is_looked_at_so_closely():
    stored, *_ = of(nn.Linear(3, 3), Exact())
    assert [stored.bind(stored.version).is_first for _ in range(3)] == [True, False, False]
