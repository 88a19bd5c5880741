"""What a user sees of real runs: access orders equal on every number of stages, and compare."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import naspipe as npp
from naspipe.cli.log import _unused, folded
from naspipe.cli.main import main
from naspipe.config.ids import LayerId
from naspipe.store.compare import RecordedRun
from naspipe.worker.checkpoints.restored import from_raw
from tests.equivalence import spaces


def train(path, stages, seed=3, **execution):
    return npp.train(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=30, seed=seed, stages=stages,
        run_dir=path, execution=execution,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    return [train(directory / str(stages), stages, digests=True).directory.path
            for stages in (1, 2, 4)]  # fmt: skip


@pytest.mark.parametrize("layer", ["0.1", "3.0", "5.1", "head"])
def test_the_log_is_the_same_on_every_number_of_stages(runs, capsys, layer):
    orders = []
    for run in runs:
        assert main(["log", str(run), "--layer", layer]) == 0
        orders.append(capsys.readouterr().out)
    assert len(set(orders)) == 1
    steps = orders[0].strip().split("-")
    users = [int(step[:-1]) for step in steps[0::2]]
    assert steps == [f"{user}{letter}" for user in users for letter in "FB"]
    assert users == sorted(set(users)) and len(users) > 2


def test_layers_without_state_have_readers_and_no_order(runs, capsys):
    users = set()
    for run in runs:
        assert main(["log", str(run), "--layer", "5.2", "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)
        assert (told["rule"], told["writes"]) == ("no state", 0)
        assert all(use.endswith("F") for use in told["order"])
        users.add(frozenset(told["order"]))
    assert len(users) == 1 and len(users.pop()) > 2


def test_a_layer_that_nobody_used_says_which_ones_were(runs, capsys):
    recorded = RecordedRun(runs[0])
    used = [each for each in recorded.log.layers if recorded.labels.label(each).startswith("0.")]
    unused = LayerId(used[0].stream, used[0].block, 99)
    assert _unused(recorded, unused) == (
        f"naspipe: no subnet of {runs[0]} used 0.99; of its block these were: "
        f"{', '.join(recorded.labels.label(each) for each in sorted(used))}"
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_long_order_is_folded(width):
    order = "-".join(f"{y}F-{y}B" for y in range(0, 4000, 3))
    short = folded(order, width)
    assert len(short) <= width and short.startswith("0F-") and short.endswith("-3999B")
    left = int(short.split("… ")[1].split(" more")[0].replace(",", ""))
    ends = short.split("- … ")[0], short.split(" … -")[1]
    assert left + sum(end.count("-") + 1 for end in ends) == order.count("-") + 1
    assert all(end in order for end in ends) and folded("0F-0B", width) == "0F-0B"


def test_equal_runs_are_identical(runs, capsys):
    assert main(["compare", *map(str, runs)]) == 0
    assert capsys.readouterr().out.count("IDENTICAL") == 2


def test_a_flipped_bit_is_found_where_it_was_written(runs, tmp_path, monkeypatch, capsys):
    """One weight changes its last bit at one WRITE: digests name that layer and step."""
    from naspipe.worker.layers.stored_layer import StoredLayer

    write = StoredLayer.write
    step = tmp_path / "step"

    def flip(layer, gradients, version, base, keeps_base, step_number, lr, *more):
        write(layer, gradients, version, base, keeps_base, step_number, lr, *more)
        if lr and layer.label == "2.1" and version >= 7 and not step.exists():
            weight = layer.parameters["linear.weight"].data.view(-1)
            weight.view(torch.int32)[0] ^= 1
            step.write_text(str(version))

    monkeypatch.setattr(StoredLayer, "write", flip)
    other = train(tmp_path / "other", 2, digests=True).directory.path
    assert main(["compare", str(runs[0]), str(other)]) == 1
    shown = capsys.readouterr().out
    assert "DIFFERS" in shown
    assert "2.1" in shown.split("first difference", 1)[1].split("\n")[0]
    assert step.read_text() in shown.split("first difference", 1)[1].split("\n")[0]


def test_another_seed_cannot_be_compared(runs, tmp_path, capsys):
    other = train(tmp_path / "other", 1, seed=4).directory.path
    assert main(["compare", str(runs[0]), str(other)]) == 2
    said = capsys.readouterr().out.splitlines()[-2:]
    assert "different runs: definition.seed is 3 in" in said[0] and ", 4 in" in said[0]
    assert "train one of the two again with --seed 3;" in said[1]


def test_the_official_reader_opens_every_shard(runs):
    """With the bits that ours reads, of parameters, buffers and optimizer states."""
    for run in runs:
        recorded = RecordedRun(run)
        shards = sorted(recorded.directory.checkpoint().glob("*.safetensors"))
        assert len(shards) == recorded.num_stages
        found = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
        own = recorded.checkpoint().tensors
        assert found.keys() == own.keys()
        for name, raw in own.items():
            tensor = from_raw(raw)
            assert (tensor.shape, tensor.dtype) == (found[name].shape, found[name].dtype)
            same = tensor.reshape(-1).view(torch.uint8) == found[name].reshape(-1).view(torch.uint8)
            assert same.all(), name


def test_the_manifest_defines_the_run(runs):
    manifest = json.loads((runs[1] / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["definition"]["rules"] == {"stem": "lag(3)", "head": "exact"}
    assert manifest["definition"]["recipe"]["optimizer"] == "SGD"
    assert manifest["environment"]["software"]["torch"]
    assert manifest["environment"]["hardware"]["processor"]
    assert 0 <= manifest["measured"]["bubble_ratio"] < 1
