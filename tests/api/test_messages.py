"""Runs that end because of the user's code or data: the message names what is to blame."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError, ObserverError, StageFailedError

LOSS = nn.CrossEntropyLoss()


def data(seed, number):
    generator = torch.Generator().manual_seed(1000 * seed + number)
    x = torch.randn(8, 12, generator=generator)
    return {"input": x, "target": (x.sum(1) > 0).long()}


def network():
    torch.manual_seed(0)
    return npp.chain([nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)])


def train(path, space=None, data=data, loss=LOSS, **more):
    more = {"steps": 8, "progress": False, **more}
    return npp.train(space or network(), data, loss, run_dir=path / "run", **more)


class Broken(npp.Observer):
    """A tracker that is down from some loss on."""

    def __init__(self, after):
        self.left = after

    def on_loss(self, stream, sequence_id, loss):
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the tracker is down")


@pytest.mark.parametrize("stages", [1, 2])
def test_an_observer_that_fails_leaves_a_checkpoint(tmp_path, stages):
    said = r"^observer Broken: on_loss raised ConnectionError: the tracker is down \(.*ended with a"
    with pytest.raises(ObserverError, match=said) as caught:
        train(tmp_path, steps=200, stages=stages, observer=Broken(30))
    cut = int(str(caught.value).split("checkpoint at subnet ")[1].split(";")[0])
    assert cut > 30
    run = train(tmp_path, steps=200, stages=stages, resume=True)
    assert run.losses == train(tmp_path / "whole", steps=200).losses


def test_an_observer_that_fails_at_the_last_loss_leaves_a_whole_run(tmp_path):
    with pytest.raises(ObserverError, match="is complete"):
        train(tmp_path, observer=Broken(7))
    assert train(tmp_path, resume=True).manifest["status"] == "complete"


@pytest.mark.parametrize("stages", [1, 2])
def test_a_missing_field_is_named_with_what_asks_for_it(tmp_path, stages):
    def later(seed, number):
        batch = data(seed, number)
        return batch if number > 2 else {**batch, "extra": batch["input"]}

    extra = npp.Shared("mixed", lambda: nn.Bilinear(16, 12, 4), fields=("extra",))
    space = npp.Space("mine", [npp.Shared("stem", lambda: nn.Linear(12, 16)), extra])
    said = r"^batch 3: expected a tensor called 'extra', found input, target \(block mixed needs it"
    with pytest.raises(ConfigError, match=said):
        train(tmp_path, space, later, stages=stages)


def test_items_without_a_field_are_named():
    items = [{"input": torch.zeros(2), **({"weight": 1.0} if n < 3 else {})} for n in range(4)]
    batches = npp.from_dataset(items, batch_size=4, shuffle=False)
    said = r"^from_dataset: expected the item in row 3 to have the field 'weight', .* found input;"
    with pytest.raises(ConfigError, match=said):
        batches(0, 0)


def test_escape_codes_are_left_out(tmp_path):
    def red(seed, number):
        if number > 2:
            raise RuntimeError("\x1b[31mred\x1b[0m \x1b]0;title\x07thing")
        return data(seed, number)

    with pytest.raises(StageFailedError, match="RuntimeError: red thing") as caught:
        train(tmp_path, data=red)
    assert "\x1b" not in str(caught.value)


class Masked(nn.Module):
    def __init__(self, inputs, outputs, mask):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return self.linear(x) * self.mask[:1]


def test_a_shared_buffer_is_not_called_tied(tmp_path):
    mask = torch.ones(4)
    layers = [npp.Shared(n, lambda: Masked(12, 12, mask)) for n in ("first", "second")]
    with pytest.raises(ConfigError, match=r"^layers first and second share one buffer") as caught:
        train(tmp_path, npp.Space("mine", layers))
    assert "tied" not in str(caught.value) and ".clone()" in str(caught.value)


def test_a_gradient_that_leads_nowhere_has_its_cause(tmp_path):
    def penalised(output, target):
        (found,) = torch.autograd.grad(output.detach().sum(), output)
        return LOSS(output, target) + found.sum()

    said = r"^the loss \(penalised\): .* does not require grad .*; its code takes a gradient of a "
    with pytest.raises(ConfigError, match=said):
        train(tmp_path, loss=penalised)


def normed():
    return npp.chain([nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)])


def test_a_last_batch_of_one_item_is_said_at_the_start(tmp_path):
    items = [(torch.randn(12), n % 4) for n in range(33)]
    said = (
        r"^batch 4, the last one of an epoch of 33 items, has a single item; leave it out with "
        r"drop_last=True, .* layer 1\.0 \(BatchNorm1d\)"
    )
    with pytest.raises(ConfigError, match=said):
        train(tmp_path, normed(), npp.from_dataset(items, batch_size=8), steps=5)
    assert not (tmp_path / "run").exists()
    train(tmp_path / "short", normed(), npp.from_dataset(items, batch_size=8), steps=4)
    whole = npp.from_dataset(items, batch_size=8, drop_last=True)
    train(tmp_path / "whole", normed(), whole, steps=5)
    train(tmp_path / "plain", None, npp.from_dataset(items, batch_size=8), steps=5)
