"""A run that was ended and resumed leaves the bits of one that was not, on whatever stages."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.engine.versions import VersionBook
from naspipe.store.compare import compare_runs
from naspipe.worker.checkpoints import restored
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.equivalence import spaces
from tests.equivalence.harness import restless
from tests.faults.helpers import (
    Calm,
    Ends,
    assert_identical,
    fail,
    interrupt,
    interrupt_and_resume,
    train,
)
from tests.mutants import turns_red
from tests.thinned import long

LEAST = {"memory_budget": "0.001x"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs, each made once."""
    made = {}

    def run(data=spaces.vectors, make=spaces.mixed, **kw):
        key = (make, tuple(sorted((k, str(v)) for k, v in kw.items())))
        if key not in made:
            path = tmp_path_factory.mktemp("whole") / "run"
            made[key] = train(path, Calm(data), space=make(), **kw)
        return made[key]

    return run


def on(stages, **execution):
    return {"stages": stages, "execution": execution}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        long(on(4), on(1)), (on(4), on(2, partition="static")), (on(4), on(3, **LEAST)),
        long(on(1), on(4)), (on(2, **LEAST), on(3)), long(on(1, **LEAST), on(1, recompute=True)),
    ],
)  # fmt: skip
def test_other_stages_budgets_and_partitions(tmp_path, whole, first, then):
    found = interrupt_and_resume(tmp_path, spaces.vectors, first, then)
    assert_identical(whole(), found)


@pytest.mark.parametrize("optimizer", [long("Adam"), "NAdam", long("ASGD")])
def test_every_kind_of_optimizer_state(tmp_path, whole, optimizer):
    kw = {"optimizer": optimizer, "lr": 0.01}
    found = interrupt_and_resume(tmp_path, spaces.vectors, on(3), on(2, **LEAST), **kw)
    assert_identical(whole(**kw), found)


@pytest.mark.parametrize(
    ("make", "data"),
    [
        long(spaces.several, spaces.vectors), (spaces.maps, spaces.images),
        (spaces.memory, spaces.sequences),
    ],
)  # fmt: skip
def test_other_spaces(tmp_path, whole, make, data):
    found = interrupt_and_resume(tmp_path, data, on(2), on(3), space=make())
    assert_identical(whole(data, make), found)


def lagging():
    return spaces.mixed(front=npp.Frozen(), end=npp.Lag(7))


def test_a_long_lag_and_a_frozen_layer(tmp_path, whole):
    found = interrupt_and_resume(tmp_path, spaces.vectors, on(2), on(3), space=lagging())
    assert_identical(whole(make=lagging), found)


@pytest.fixture
def moving(monkeypatch):
    """Layers move from stage to stage."""
    restless(monkeypatch)


@pytest.mark.usefixtures("moving")
def test_layers_on_the_move(tmp_path, whole):
    found = interrupt_and_resume(tmp_path, spaces.vectors, on(3), on(2), optimizer="Adam")
    assert_identical(whole(optimizer="Adam"), found)


def test_a_checkpoint_at_every_subnet_and_many_lives(tmp_path, whole):
    path, every = tmp_path / "run", {"checkpoint_every": 1}
    for number, (at, stages) in enumerate([(6, 2), (11, 1), (12, 3), (21, 2)]):
        ends = Ends(spaces.vectors, at, fail, tmp_path / f"marker-{number}")
        with pytest.raises(npp.NaspipeError, match="injected"):
            train(path, ends, stages=stages, resume=number > 0, execution=every)
    found = train(path, Calm(spaces.vectors), stages=2, resume=True, execution=every)
    assert found.manifest["life"]["generation"] == 4
    assert_identical(whole(), found)


def test_restarts_by_itself(tmp_path, whole):
    ends = Ends(spaces.vectors, 17, fail, tmp_path / "marker")
    found = train(tmp_path / "run", ends, stages=2, execution={"max_restarts": 1})
    assert found.manifest["life"]["generation"] == 1
    assert_identical(whole(), found)


def test_without_a_checkpoint_it_begins_again(tmp_path, whole):
    path = tmp_path / "run"
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(path, Ends(spaces.vectors, 3, fail, tmp_path / "marker"), stages=2)
    found = train(path, Calm(spaces.vectors), stages=2, resume=True)
    assert found.manifest["life"] == {"generation": 1, "first": [0]}
    assert_identical(whole(), found)


def test_streams_resume_each_from_its_own_cut(tmp_path):
    def workload(data, seed, steps):
        return npp.workload(
            spaces.mixed(), data, nn.CrossEntropyLoss(), seed=seed, steps=steps,
            optimizer_options={"momentum": 0.9},
        )  # fmt: skip

    def together(data, **kw):
        execution = npp.Execution(stages=kw.pop("stages"), checkpoint_every=4, window=4)
        jobs = [workload(data, 1, 20), workload(Calm(spaces.vectors), 2, 7)]
        return npp.train_together(jobs, execution, tmp_path / "run", **kw)

    with pytest.raises(npp.NaspipeError, match="interrupted by SIGINT"):
        together(Ends(spaces.vectors, 9, interrupt, tmp_path / "marker"), stages=2)
    runs = together(Calm(spaces.vectors), stages=3, resume=True)
    first = runs[0].manifest["life"]["first"]
    assert first[0] >= 9 > 7 >= first[1] > 0
    for run, seed, steps in zip(runs, (1, 2), (20, 7), strict=True):
        alone = npp.train_together(
            [workload(Calm(spaces.vectors), seed, steps)], npp.Execution(), tmp_path / str(seed)
        )[0]
        (comparison,) = compare_runs([alone.directory.path, run.directory.path])
        assert comparison.is_identical, str(comparison)


def test_a_complete_run_is_left_alone(tmp_path):
    run = train(tmp_path / "run", Calm(spaces.vectors), steps=6)
    before = {p: p.stat().st_mtime_ns for p in run.directory.path.rglob("*") if p.is_file()}
    train(tmp_path / "run", Calm(spaces.vectors), steps=6, resume=True)
    after = {p: p.stat().st_mtime_ns for p in run.directory.path.rglob("*") if p.is_file()}
    assert {p: t for p, t in after.items() if p.name != ".lock"} == {
        p: t for p, t in before.items() if p.name != ".lock"
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "its seed is 1, you asked for 2"),
        ({"lr": 0.5}, "its recipe.lr is 0.02, you asked for 0.5"),
        ({"steps": 25}, "its steps is 24, you asked for 25"),
    ],
)  # fmt: skip
def test_another_definition_is_refused(tmp_path, change, message):
    ends = Ends(spaces.vectors, 6, fail, tmp_path / "marker")
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(tmp_path / "run", ends)
    with pytest.raises(npp.ConfigError, match=message):
        train(tmp_path / "run", Calm(spaces.vectors), resume=True, **change)


def forget_optimizer(stored, name, value):
    return None


def only_newest(snapshot_layer):
    def capture(stored, versions):
        return snapshot_layer(stored, versions)._replace(versions=versions[-1:])

    return capture


@pytest.mark.parametrize(
    ("target", "name", "broken", "make", "reason"),
    [
        (
            restored,
            "_set_optimizer_state",
            forget_optimizer,
            spaces.mixed,
            "final state, .*: optimizer/",
        ),
        (
            restored,
            "_set_buffer",
            lambda stored, name, value: None,
            spaces.mixed,
            "final state, .*: buffer/",
        ),
        (StoredLayer, "copies", lambda stored, versions: iter(()), lagging, r"step \d+: loss"),
        (VersionBook, "hold", VersionBook.readable, spaces.mixed, "released more than read"),
    ],
    ids=["no optimizer state", "no buffers", "no history", "not held"],
)
def test_a_broken_rule_is_seen(tmp_path, whole, monkeypatch, target, name, broken, make, reason):
    reference = whole(make=make)
    monkeypatch.setattr(target, name, broken)
    with turns_red(reason):
        found = interrupt_and_resume(tmp_path, spaces.vectors, on(1), on(1), space=make())
        assert_identical(reference, found)
