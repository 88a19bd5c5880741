"""Labels from where they are computed: one definition, the bits of one plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.distill.label_file import LabelFile
from naspipe.distill.label_network import LabelNetwork
from naspipe.store.compare import compare_runs
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, restless
from tests.equivalence.test_teachers import SEED, network, plain_loop, train
from tests.faults.helpers import Calm, Ends, interrupt
from tests.thinned import long


@pytest.fixture
def labels(tmp_path):
    return written(tmp_path / "labels", spaces.vectors)


def written(path, data):
    npp.write_labels(npp.Teacher(network()), data, path, batches=48, seed=SEED)
    return f"file:{path}"


def source_of(name, labels):
    return labels if name == "file" else name


@pytest.mark.parametrize(
    ("stages", "teachers", "execution"),
    [
        long(1, 1, {}),
        (2, 2, {"recompute": True, "label_audit": 3}),
        (1, 3, {"labels_ahead": 4, "labels_again": 1}),
        (3, 5, {"window": 2, "teacher_inputs": "sent"}),
        long(1, 2, {"teacher_stages": 3}),
        (2, 1, {"teacher_stages": 2, "teacher_inputs": "sent"}),
    ],
)
def test_a_service(tmp_path, stages, teachers, execution):
    how = {"labels": "service", "teachers": teachers, "verify": "4", **execution}
    run = train(tmp_path / "run", stages, execution=how)
    assert_same_bits(run, plain_loop(run))
    assert run.manifest["verified"] == {"steps": 4}


@pytest.mark.parametrize("name", ["inline", "file"])
@pytest.mark.parametrize(
    ("stages", "execution"),
    [(1, {}), (2, {"recompute": True}), (2, {"memory_budget": "1x"}), long(3, {"window": 2})],
)
def test_bits_of_the_plain_loop(tmp_path, labels, name, stages, execution):
    how = {"labels": source_of(name, labels), "verify": "4", **execution}
    run = train(tmp_path / "run", stages, execution=how)
    assert_same_bits(run, plain_loop(run))
    assert run.manifest["verified"] == {"steps": 4}
    assert not (tmp_path / "run/teacher").exists()


@pytest.mark.parametrize("name", ["inline", "file"])
@pytest.mark.parametrize(("groups", "stages"), [long(1, 2), (2, 1), (2, 2)])
def test_passes_and_groups(tmp_path, monkeypatch, labels, name, groups, stages):
    restless(monkeypatch)
    how = {"labels": source_of(name, labels), "groups": groups, "verify": "4"}
    run = train(tmp_path / "run", stages, "accumulate:4", how)
    assert_same_bits(run, plain_loop(run, 4))
    assert run.manifest["verified"] == {"steps": 4}


def test_one_definition(tmp_path, labels):
    """Runs whose labels came from elsewhere can be compared, and are the same."""
    paths = [tmp_path / name for name in ("pipeline", "inline", "file")]
    for path in paths:
        train(path, 1, execution={"labels": source_of(path.name, labels)})
    for path in paths[1:]:
        (found,) = compare_runs([paths[0], path])
        assert found.is_identical, str(found)


@pytest.mark.parametrize("names", [("inline", "pipeline"), long(("pipeline", "file"))])
def test_a_resume_takes_them_from_elsewhere(tmp_path, names):
    labels = written(tmp_path / "labels", Calm(spaces.vectors))
    first, then = ({"labels": source_of(name, labels), "window": 4} for name in names)
    ends = Ends(spaces.vectors, 7, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError):
        train(tmp_path / "run", 2, data=ends, steps=40, window=4, execution=first)
    data = Calm(spaces.vectors)
    run = train(tmp_path / "run", 3, data=data, steps=40, execution=then, resume=True)
    assert run.manifest["life"]["first"][0] > 0
    assert_same_bits(run, plain_loop(run))


def odd_last(seed, number):
    """Every fifth batch is a short one."""
    batch = spaces.vectors(seed, number)
    return {name: field[: 3 if number % 5 == 4 else None] for name, field in batch.items()}


def test_odd_batches(tmp_path):
    path = tmp_path / "labels"
    npp.write_labels(npp.Teacher(network()), odd_last, path, batches=12, seed=SEED)
    found = LabelFile(path)
    assert {len(found.label(number)) for number in range(12)} == {3, 12}
    runs = [
        train(tmp_path / str(n), 2, data=odd_last, execution={"labels": each})
        for n, each in enumerate(("pipeline", "inline", f"file:{path}"))
    ]
    assert runs[0].losses == runs[1].losses == runs[2].losses


def test_a_split_batch_is_seen(tmp_path, monkeypatch):
    """Labels of a batch's parts are other labels: one row alone has a kernel of its own."""
    whole = LabelNetwork.label_of

    def in_parts(teacher, number, fields):
        parts = [
            whole(teacher, number, [tuple(f[part] for f in each) for each in fields])
            for part in (slice(0, 1), slice(1, None))
        ]
        return torch.cat(parts)

    monkeypatch.setattr(LabelNetwork, "label_of", in_parts)
    run = train(tmp_path / "run", 1, execution={"labels": "inline"}, teacher=wide())
    monkeypatch.undo()
    again = train(tmp_path / "again", 1, execution={"labels": "inline"}, teacher=wide())
    assert run.losses != again.losses


def wide():
    """Wide enough for the kernels of the batch and of its parts to add up in other orders."""
    torch.manual_seed(5)
    return npp.Teacher(nn.Sequential(nn.Linear(16, 999), nn.Tanh(), nn.Linear(999, 10)))


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("change", "more", "text"),
    [
        (flipped, {}, "offset [0-9]+: expected a record with a matching CRC32"),
        (cut, {}, "offset [0-9]+: expected a record of"),
        (lambda path: path.unlink(), {}, "expected a file of labels at .* found No such file"),
        (lambda path: path.write_text("no"), {}, "found one that begins with b'no'"),
        (None, {"steps": 49}, "found none of batch 48; write more"),
        (None, {"teacher": npp.Teacher(nn.Sequential(nn.Linear(16, 10)))}, "of teacher "),
        (None, {"data": odd_last}, "expected those of data .*odd_last.*, found .*vectors"),
    ],
)
def test_another_file(tmp_path, labels, change, more, text):
    if change is not None:
        change(tmp_path / "labels")
    with pytest.raises(npp.ConfigError, match=text) as caught:
        train(tmp_path / "run", 1, execution={"labels": labels}, **more)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"teacher": npp.Teacher(network(), mode="train")}, "expected a teacher in mode eval"),
        (
            {"teacher": npp.Momentum(0.9), "recipe": {"norms": "deferred"}},
            "labels=inline: expected a frozen teacher",
        ),
    ],
)
def test_teachers_that_give_no_labels(tmp_path, more, text):
    with pytest.raises(npp.ConfigError, match=text):
        train(tmp_path / "run", 1, execution={"labels": "inline"}, **more)
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_draws(tmp_path):
    class Draws(nn.Linear):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5)

    with pytest.raises(npp.ConfigError, match="draws nothing in evaluation mode"):
        npp.write_labels(
            npp.Teacher([Draws(16, 10)]), spaces.vectors, tmp_path / "labels", batches=2
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("groups", "stages"), [long(1, 2), (2, 1)])
def test_a_service_of_passes_and_groups(tmp_path, monkeypatch, groups, stages):
    restless(monkeypatch)
    how = {"labels": "service", "teachers": 2, "groups": groups, "label_audit": 4}
    run = train(tmp_path / "run", stages, "accumulate:4", how)
    assert_same_bits(run, plain_loop(run, 4))


def sentences(seed, number):
    """Of a length that each batch has for itself."""
    torch.manual_seed(1000 * seed + number)
    shape = (4, 3 + number % 5)
    return {"input": torch.randn(*shape, 6), "target": torch.randint(0, 5, shape)}


class OfTokens(nn.Module):
    def forward(self, output, target):
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def distill(self, output, taught, target):
        return self(output, target) + (output - taught).square().mean()


def test_labels_of_many_lengths(tmp_path):
    torch.manual_seed(2)
    space = npp.chain([nn.Linear(6, 5)])
    teacher = npp.Teacher([nn.Linear(6, 9), nn.Linear(9, 5)])
    runs = [
        npp.train(
            space, sentences, OfTokens(), steps=12, seed=SEED,
            teacher=teacher, run_dir=tmp_path / name,
            execution={"labels": name, "teachers": 2 * (name == "service"), "timeout_seconds": 20},
        )
        for name in ("inline", "service")
    ]  # fmt: skip
    assert runs[0].losses == runs[1].losses
    assert compare_runs([tmp_path / "inline", tmp_path / "service"])[0].is_identical
