"""Data, losses and metrics that cannot be used: one line, and nothing is trained or written."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import naspipe as npp
from tests.equivalence import spaces
from tests.equivalence.test_datasets import (
    FIELDS,
    SEED,
    Augmented,
    accuracy,
    batched,
    ended,
    train,
    weighted,
)
from tests.faults.helpers import Ends, fail


def refused(path, data, message):
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(npp.ConfigError, match=message) as caught:
        train(path, data, resume=True)
    assert "\n" not in str(caught.value)
    after = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    signs = (".lock", "heartbeat.json")
    assert {p: b for p, b in after.items() if p.name not in signs} == {
        p: b for p, b in before.items() if p.name not in signs
    }


class Kept:
    """Batches of an iterator, remembered: the same within a process, others in another one."""

    record = Ends.record

    def __init__(self):
        plain = ((i, *batched().make(SEED, i).values()) for i in range(100))
        self.loader, self.known = plain, {}

    def __call__(self, seed, number):
        while number not in self.known:
            _, *fields = next(self.loader)
            self.known[len(self.known) if number == 0 else number] = fields
        return dict(zip(("input", *FIELDS), self.known[number], strict=True))


def test_a_resume_with_an_iterator_is_refused(tmp_path):
    """What a user met: batches 28 to 39 were batches 0 to 11 again, and nothing said so."""
    path = tmp_path / "run"
    ended(path, Kept())
    refused(path, Kept(), r"expected batch 7 as it was trained on before, found another from data")


class Shuffled:
    """In an order that each process draws for itself."""

    record = Ends.record

    def __init__(self):
        self.data = batched()

    def __call__(self, seed, number):
        batch = self.data(seed, number)
        draw = torch.Generator().manual_seed(os.getpid() if number else 0)
        order = torch.randperm(len(batch["input"]), generator=draw)
        return {name: each[order] for name, each in batch.items()}


def test_an_order_that_each_process_draws_for_itself_is_refused(tmp_path):
    """Inputs of one order learned the targets of another, and nothing said so."""
    train(tmp_path / "one", Shuffled(), stages=1)
    said = r"expected the same batch \d+ in every process, found another one on stage"
    with pytest.raises(npp.ConfigError, match=said):
        train(tmp_path / "two", Shuffled(), stages=2)


def test_a_restart_with_an_iterator_is_refused(tmp_path):
    with pytest.raises(npp.ConfigError, match="as it was trained on before"):
        train(
            tmp_path / "run", Ends(Kept(), 9, fail, tmp_path / "marker"), stages=2,
            execution={"max_restarts": 1},
        )  # fmt: skip


def test_a_resume_with_another_data_set_is_refused(tmp_path):
    path = tmp_path / "run"
    ended(path, batched())
    other = batched(Augmented(shift=0.5))
    refused(path, other, "was trained on other data: expected a first batch with the 'input'")


def once(seed, number, loader=iter(DataLoader(Augmented(), batch_size=12))):  # noqa: B008
    return dict(zip(("input", *FIELDS), next(loader), strict=True))


def anew(seed, number):
    return dict(zip(("input", *FIELDS), next(iter(DataLoader(Augmented(), 12, True))), strict=True))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (once, r"expected the same batch whenever data\(1, 0\) is called, .*npp.from_dataset"),
        (anew, r"found another 'input' the second time; make it from the seed and the number"),
        (
            DataLoader(Augmented(), batch_size=8, drop_last=True),
            r"found a DataLoader, .* use npp.from_dataset\(loader.dataset, batch_size=8, "
            r"shuffle=False, drop_last=True\)",
        ),
        (Augmented(), r"the Dataset Augmented; use npp.from_dataset\(dataset, batch_size=...\)"),
        (iter(()), "found tuple_iterator; make it from the seed"),
    ],
)
def test_what_cannot_make_a_batch_again_is_one_line(tmp_path, data, message):
    for options in ({"data": data}, {"data": batched(), "held_out": data}):
        if "held_out" in options and callable(data):
            continue
        with pytest.raises(npp.ConfigError, match=message) as caught:
            train(tmp_path / "run", **options)
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def each(output, target, weight):
    return functional.cross_entropy(output, target, reduction="none")


def needs_values(output, target, weight):
    return weighted(output, target, weight) if weight.sum().item() > 0 else output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "found reduction='none', which gives"),
        ({"loss": each}, r"loss each: expected one number .* of shape \[12\] \(reduction='none'"),
        ({"loss": nn.CrossEntropyLoss()}, r"a function of \(output, target, weight\), found Cross"),
        ({"loss_fields": None}, r"expected a function of \(output, target\), found weighted\(out"),
        ({"loss_fields": ("target", "wait")}, "expected a tensor called 'wait', found input, "),
        ({"loss_fields": "target"}, "loss_fields: expected names of batch fields, as in"),
        (
            {"loss": npp.losses.Contrastive()},
            "loss_fields: expected none with Contrastive",
        ),
        ({"metrics": [accuracy]}, "metrics: expected a dict of functions by name, found list"),
        ({"metrics": {"a b": accuracy}}, "metrics: expected names of letters, .* found 'a b'"),
        ({"metrics": {"a": 3}}, "metric a: expected a function, found int"),
        ({"metrics": {"a": lambda x: x}}, r"metric a: expected a function of \(output, target, w"),
        ({"metrics": {"a": lambda *x: x[0]}}, r"metric a: expected one number .* \[12, 10\]"),
    ],
)
def test_a_loss_that_does_not_fit_is_one_line(tmp_path, options, message):
    options = {
        "loss": weighted, "loss_fields": FIELDS, "steps": 2, "run_dir": tmp_path / "run", **options
    }  # fmt: skip
    with pytest.raises(npp.ConfigError, match=message) as caught:
        npp.train(spaces.mixed(blocks=1), batched(), **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


class Remembers:
    """A loss that makes something at its first call, and keeps it."""

    def __init__(self):
        self.rows = None

    def __call__(self, output, target, weight):
        if self.rows is None:
            self.rows = torch.eye(10)
        return ((output - self.rows[target]).square().mean(1) * weight).mean()


def test_what_is_tried_before_a_run_leaves_nothing_in_a_loss(tmp_path):
    loss = Remembers()
    run = npp.train(
        spaces.mixed(blocks=1), batched(), loss, steps=2, run_dir=tmp_path / "run",
        loss_fields=FIELDS,
    )  # fmt: skip
    assert loss.rows is None or loss.rows.device.type == "cpu"
    assert len(run.losses) == 2


def test_a_function_that_needs_values_is_looked_at_in_the_first_step(tmp_path):
    def text(output, target, weight):
        return str(output.sum().item())

    with pytest.raises(npp.ConfigError, match=r"metric a: expected one number .* found str"):
        npp.train(
            spaces.mixed(blocks=1), batched(), needs_values, steps=2, run_dir=tmp_path / "run",
            loss_fields=FIELDS, metrics={"a": text},
        )  # fmt: skip


class Told(npp.Observer):
    """Keeps what it is told."""

    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize("pure_calls", [12, 10**6])
def test_data_that_change_late_are_found_at_the_end(tmp_path, pure_calls):
    calls, told = [], Told()

    def data(seed, y):
        calls.append(y)
        late = len(calls) if len(calls) > pure_calls else 0
        generator = torch.Generator().manual_seed(y + 1000 * late)
        return {"input": torch.randn(4, 8, generator=generator), "target": torch.arange(4)}

    space = npp.Space("s", [npp.Block([lambda: nn.Linear(8, 8)]), npp.Shared("head", nn.Flatten)])
    run = npp.train(
        space, data, nn.CrossEntropyLoss(), steps=20, run_dir=tmp_path / "run", observer=told
    )
    assert run.manifest["status"] == "complete"
    found = [note for note in told.notes if "expected batch 19 as it was trained on" in note]
    assert len(found) == (pure_calls == 12)
