"""Work in place on given tensors, and types that do not go together, are seen without values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.checks.shapes import WatchedCalls


@pytest.mark.parametrize(
    ("function", "edits"),
    [
        (lambda x: x.data.mul_(2), True),
        (lambda x: x.detach()[0].zero_(), True),
        (lambda x: torch.add(x, 1, out=x), True),
        (lambda x: torch.relu_(x), True),
        (lambda x: (x * 2).mul_(2), False),
        (lambda x: x.clone().data.mul_(x), False),
    ],
)
def test_edits_are_seen_whichever_way_they_are_written(function, edits):
    x = torch.empty(4, device="meta")
    with WatchedCalls([x]) as seen:
        function(x)
    assert seen.is_edited is edits


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.Linear(4, 4), (2, 4)), (nn.Linear(4, 4), (2, 3, 4)), (nn.LayerNorm(4), (2, 4)),
     (nn.BatchNorm1d(4), (2, 4))],
)  # fmt: skip
@pytest.mark.parametrize(("dtype", "mixes"), [(torch.float32, False), (torch.float64, True)])
def test_types_that_do_not_go_together(module, shape, dtype, mixes):
    with WatchedCalls([]) as seen:
        module.to("meta")(torch.empty(shape, dtype=dtype, device="meta"))
    assert seen.is_mixed is mixes
