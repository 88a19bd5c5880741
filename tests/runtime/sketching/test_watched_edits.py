"""Work in place on given tensors is seen, whichever way it is written."""

from __future__ import annotations

import pytest
import torch

from naspipe.runtime.sketching.watched_edits import WatchedEdits


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
def test_edits_are_seen_without_values(function, edits):
    x = torch.empty(4, device="meta")
    with WatchedEdits([x]) as seen:
        function(x)
    assert seen.is_edited is edits
