"""A data set whose items depend on what was drawn before is refused before the start."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import naspipe as npp
from naspipe.checks.data import check_items
from naspipe.config.errors import ConfigError
from tests.equivalence import spaces


class Points(Dataset):
    """Vectors of 16 with a little noise, drawn or kept in several ways."""

    def __init__(self, how):
        self.how, self.kept = how, {}
        self.draw, self.numpy, self.python = (
            torch.Generator().manual_seed(0), np.random.default_rng(0), random.Random(0),
        )  # fmt: skip

    def __len__(self):
        return 12

    def __getitem__(self, row):
        plain = torch.full((16,), float(row + 1))
        if self.how == "torch":
            plain = plain + torch.rand(16, generator=self.draw)
        elif self.how in ("numpy", "python"):
            plain = plain * getattr(self, self.how).random()
        elif self.how == "keeps what it drew":
            if row not in self.kept:
                self.kept[row] = plain + torch.rand(16)
            plain = self.kept[row]
        elif self.how == "keeps what it read":
            plain = self.kept.setdefault(row, plain) + torch.rand(16)
        elif self.how == "draws":
            plain = plain * float(np.random.rand()) * random.random() + torch.rand(16)
        return plain, row % 3


ALONE = "found another the second time"
KEPT = "found another in a process that had drawn it before"
SILENT = {"torch": ALONE, "numpy": ALONE, "python": ALONE, "keeps what it drew": KEPT}


@pytest.mark.parametrize("how", SILENT)
def test_one_that_remembers(how):
    data = npp.from_dataset(Points(how), batch_size=4, shuffle=False)
    with pytest.raises(ConfigError) as caught:
        check_items(data, "points", 0)
    assert str(caught.value) == (
        f"data points: expected the item in row 0 to follow from its row and the draws that its "
        f"key starts, {SILENT[how]}; keep nothing that was drawn, and draw from the global "
        f"generators of torch, numpy or Python"
    )


@pytest.mark.parametrize("how", ["plain", "draws", "keeps what it read"])
def test_one_that_does_not(how):
    data = npp.from_dataset(Points(how), batch_size=4)
    check_items(data, "points", 0)
    assert not data.made_of[0].kept  # it was asked elsewhere


def array(item):
    return {"input": item[0].numpy() * KINDS.kept.setdefault(0, random.random())}


def text(item):
    return [KINDS.kept.setdefault(0, random.random()), "text"]


KINDS = SimpleNamespace(kept={})


@pytest.mark.parametrize("transform", [array, text])
def test_items_of_any_kind(transform):
    data = npp.from_dataset(Points("plain"), batch_size=4, transform=transform)
    with pytest.raises(ConfigError, match="had drawn it before"):
        check_items(data, "points", 0)


def test_one_that_raises_is_left_to_the_first_batch():
    def raises(item):
        raise ValueError("no such item")

    check_items(npp.from_dataset(Points("plain"), batch_size=4, transform=raises), "points", 0)


@pytest.mark.parametrize("how", ["keeps what it drew", "draws"])
def test_a_run(tmp_path, how):
    def train():
        data = npp.from_dataset(Points(how), batch_size=4)
        return npp.train(
            spaces.mixed(blocks=1), data, nn.CrossEntropyLoss(), steps=2, run_dir=tmp_path / "run"
        )

    if how == "draws":
        assert len(train().losses) == 2
        return
    with pytest.raises(ConfigError, match=r"^data .*Points: expected the item in row \d+"):
        train()
    assert not (tmp_path / "run").exists()
