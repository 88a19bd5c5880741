"""A ``Dataset``, a loss over several fields and metrics: the bits of a loop with a DataLoader."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import naspipe as npp
from naspipe.store.losses import read_losses, read_metrics
from naspipe.wire.reports import Observer
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.faults.helpers import Ends, assert_identical, fail
from tests.keyed_draws import keyed_seed
from tests.oracle import bits
from tests.thinned import long

FIELDS = ("target", "weight")
SEED, STEPS = 1, 14


class Augmented(Dataset):
    """Items that are drawn in all the ways there are."""

    def __init__(self, shift=0.0):
        self.rows = torch.arange(50.0)[:, None] / 50 + torch.eye(50, 16) + shift

    def __len__(self):
        return 50

    def __getitem__(self, row):
        pixels = self.rows[row] * random.uniform(0.5, 1.5) + 0.1 * torch.randn(16)
        return pixels, row % 10, torch.tensor(np.random.rand(), dtype=torch.float32)


class Keyed(Dataset):
    """The same items by (batch, row), under the public rule."""

    def __init__(self, plain):
        self.plain = plain

    def __getitem__(self, place):
        number, row = place
        key = keyed_seed(f"{SEED}/item/{number}/{row}")
        torch.manual_seed(key)
        np.random.seed(key % 2**32)
        random.seed(key)
        return self.plain[row]


def weighted(output, target, weight):
    return (functional.cross_entropy(output, target, reduction="none") * weight).mean()


def accuracy(output, target, weight):
    return (output.argmax(1) == target).float().mean()


def spread(output, *fields):
    return float(output.std())


class Plain:
    """The loss of the plain loop, which measures as it goes."""

    fields = FIELDS

    def __init__(self):
        self.measured = []

    def __call__(self, output, target, weight):
        accurate = accuracy(output.detach(), target, weight)
        self.measured.append((bits(accurate), spread(output.detach())))
        return weighted(output, target, weight)


def batched(dataset=None, **options):
    return npp.from_dataset(
        dataset or Augmented(), 12, fields=("input", "target", "weight"), **options
    )


def train(path, data, *, stages=1, execution=None, recipe=None, **options):
    return npp.train(
        spaces.mixed(blocks=4), data, weighted, steps=STEPS, seed=SEED, stages=stages,
        run_dir=path, loss_fields=FIELDS, metrics={"accuracy": accuracy, "spread": spread},
        execution={"checkpoint_every": 4, "window": 4, **(execution or {})}, recipe=recipe,
        **options,
    )  # fmt: skip


def loop(run, count=1, **recipe):
    """A plain loop over a DataLoader in the keyed order."""
    data, loss = batched(), Plain()
    numbers = range(STEPS * count)
    order = [[(y, row) for row in data.rows(SEED, y)] for y in numbers]
    loaded = [
        dict(zip(("input", *FIELDS), batch, strict=True))
        for batch in DataLoader(Keyed(Augmented()), batch_sampler=order)
    ]
    found = plain_loop(
        run.space, lambda seed, y: loaded[y], loss, run, seed=SEED, optimizer="SGD", lr=0.05,
        **recipe,
    )  # fmt: skip
    return found, loss


def check(run, oracle, loss):
    assert_same_bits(run, oracle)
    recorded = [dict(each.beside.metrics) for each in read_losses(run.directory.losses)]
    assert len(recorded) == len(loss.measured) == len(run.losses)
    for found, (expected, number) in zip(recorded, loss.measured, strict=True):
        assert bytes.fromhex(found["accuracy"].bits)[::-1] == expected[2]
        assert found["spread"].value == number


def loaders():
    return [each for each in multiprocessing.active_children() if "loader" in each.name]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on one stage, with the loop's bits."""
    run = train(tmp_path_factory.mktemp("whole") / "run", batched())
    check(run, *loop(run))
    return run


@pytest.mark.parametrize(
    ("stages", "workers", "execution"),
    [(1, 2, {}), long(2, 0, {}), (2, 2, {}), (3, 0, {"memory_budget": "0.001x"})],
)
def test_stages_workers_and_a_budget(tmp_path, whole, stages, workers, execution):
    data = batched(workers=workers)
    run = train(tmp_path / "run", data, stages=stages, execution=execution)
    assert_identical(whole, run)
    assert read_losses(run.directory.losses) == read_losses(whole.directory.losses)
    assert not loaders(), "they end with the run"


def test_the_definition_says_what_the_loss_takes(whole):
    definition = whole.manifest["definition"]
    assert definition["loss_fields"] == [*FIELDS]
    assert definition["metrics"] == ["accuracy", "spread"]
    assert definition["data"]["batch_size"] == 12 and definition["data"]["items"] == 50
    assert "workers" not in definition["data"]


@pytest.mark.parametrize("stages", [long(1), 2])
def test_steps_of_several_passes(tmp_path, stages):
    recipe = {"passes": "accumulate:2"}
    run = train(tmp_path / "run", batched(workers=stages - 1), stages=stages, recipe=recipe)
    check(run, *loop(run, 2, **recipe))
    assert len(run.metrics["accuracy"]) == 2 * STEPS


class Told(Observer):
    """Keeps the metrics that come before each loss."""

    def __init__(self):
        self.metrics, self.losses = {}, []

    def on_metrics(self, stream, sequence_id, metrics):
        self.metrics[sequence_id] = metrics

    def on_loss(self, stream, sequence_id, loss):
        assert self.metrics[sequence_id].keys() == {"accuracy", "spread"}
        self.losses.append(loss)


def test_whoever_watches_is_told_and_the_files_have_it(tmp_path, whole):
    told = Told()
    run = train(tmp_path / "run", batched(), stages=2, observer=told)
    rows = read_metrics(run.directory.metrics)
    assert run.metrics == whole.metrics and len(told.losses) == STEPS
    for name, values in run.metrics.items():
        assert [row[f"metrics/{name}"] for row in rows] == values
        assert [told.metrics[y][name] for y in range(STEPS)] == values


def ended(path, data, at=9, **options):
    """A run that fails at a batch, behind a checkpoint."""
    ends = Ends(data, at, fail, path.with_name("marker"))
    ends.record = data.record
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(path, ends, **options)


@pytest.mark.parametrize(("at", "first", "then"), [long(1, 1, 2), (6, 2, 1), (13, 1, 1)])
def test_a_resume_at_any_step(tmp_path, whole, at, first, then):
    path = tmp_path / "run"
    ended(path, batched(workers=2), at, stages=first, execution={"checkpoint_every": 1})
    run = train(path, batched(workers=then - 1), stages=then, resume=True)
    assert_identical(whole, run)
    assert run.manifest["life"]["generation"] == 1
    assert read_losses(run.directory.losses) == read_losses(whole.directory.losses)
    assert run.metrics == whole.metrics


class Dies(Augmented):
    """Ends the process that makes a batch ahead, once."""

    def __init__(self, marker):
        super().__init__()
        self.marker = marker

    def __getitem__(self, row):
        if row == 13 and "loader" in multiprocessing.current_process().name:
            with suppress(FileExistsError):
                self.marker.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(row)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_loader_process_that_dies_is_no_more_than_a_restart(tmp_path, whole, stages):
    data = batched(Dies(tmp_path / "marker"), workers=2)
    run = train(tmp_path / "run", data, stages=stages, execution={"max_restarts": 1})
    assert run.manifest["life"]["generation"] == 1 and not loaders()
    assert run.losses == whole.losses


def test_a_run_from_before_batches_were_recorded_goes_on(tmp_path, whole):
    path = tmp_path / "run"
    ended(path, batched())
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["batches"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert train(path, batched(), resume=True).losses == whole.losses


def test_held_out_items_and_a_search(tmp_path):
    valid = batched(Augmented(shift=0.1), shuffle=False, workers=2)
    runs = [
        train(
            tmp_path / f"on-{stages}", batched(workers=2), stages=stages, held_out=valid,
            execution={"validate_every": 8, "validate_subnets": "2", "validate_batches": 4},
        )
        for stages in (1, 2)
    ]  # fmt: skip
    found = [[each.scores for each in run.validations] for run in runs]
    assert len(found[0]) == 2 and found[0] == found[1]
    assert found[0][0].keys() == {"loss", "top1", "top5"}
    searches = [
        npp.search_subnets(
            runs[0], batched(workers=workers), weighted, held_out=valid, stages=1 + workers // 2,
            budget=4, validate=3, calibrate=2, strategy="random", name=f"s{workers}",
        )
        for workers in (0, 2)
    ]  # fmt: skip
    lines = [search.path.joinpath("candidates.jsonl").read_bytes() for search in searches]
    assert lines[0] == lines[1] and not loaders()
