"""A momentum teacher and its student: both networks' bits are those of a plain loop."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.engine.orders import ReadyTasks
from naspipe.report.recorded import read_run
from naspipe.report.run_tables import run_tables
from naspipe.store.access_log import read_run_accesses
from naspipe.store.checkpoints import read_checkpoint
from naspipe.store.compare import compare_runs
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.momentum_runs import (
    FACTORIES,
    SEED,
    STEPS,
    differences,
    joined,
    plain,
    train,
)
from tests.equivalence.test_timing_and_mutations import inject_delays
from tests.faults.helpers import Calm, Ends, interrupt, kill
from tests.thinned import long


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_byol(tmp_path, lag, stages):
    run = train(tmp_path / "run", stages, lag=lag)
    assert differences(run, plain(lag)) == []


@pytest.mark.parametrize(("stages", "lag", "batches"), [long(1, 0, 1), (2, 1, 2), (4, 2, 1)])
def test_one_loss_over_all_passes(tmp_path, stages, lag, batches):
    loss = npp.losses.Contrastive()
    run = train(tmp_path / "run", stages, lag=lag, batches=batches, loss=loss)
    assert differences(run, plain(lag, batches, joined)) == []


@pytest.mark.parametrize(
    ("stages", "execution"),
    [
        (2, {"recompute": True}),
        (2, {"window": 4, "checkpoint_every": 2}),
        long(2, {"order": "model-parallel"}),
        (2, {"order": "model-parallel", "groups": 2}),
        long(1, {"groups": 2}),
        long(2, {"groups": 2}),
        (1, {"groups": 4}),
        (2, {"memory_budget": "1x"}),
        long(1, {"memory_budget": "2x"}),
        (1, {"groups": 2, "memory_budget": "1x", "checkpoint_every": 2}),
        long(2, {"groups": 2, "memory_budget": "2x"}),
        (2, {"partly_clear": False}),
    ],
)
def test_however_it_is_carried_out(tmp_path, stages, execution):
    run = train(tmp_path / "run", stages, execution=execution)
    assert differences(run, plain()) == []


def test_its_cuts_are_the_students(tmp_path):
    run = train(tmp_path / "run", 2, execution={"teacher_cuts": "joint", "teacher_window": 4})
    assert differences(run, plain()) == []
    with pytest.raises(npp.ConfigError, match="expected joint ones for a teacher that follows"):
        train(tmp_path / "other", 2, execution={"teacher_cuts": "own"})


@pytest.mark.parametrize(("lag", "budget"), [(1, "3x"), (2, "1.5x"), long(0, "2x")])
def test_older_versions_on_groups_with_a_budget(tmp_path, lag, budget):
    """A stage still reads them after it has handed its part of the step on to the next group."""
    layers = npp.Space("swapped", [npp.Block([make]) for make in FACTORIES])
    how = {"groups": 2, "memory_budget": budget, "checkpoint_every": 3}
    runs = [
        train(tmp_path / str(number), 1, lag=lag, space=layers, execution=execution)
        for number, execution in enumerate(({}, how))
    ]
    for folder in ("", "teacher"):
        places = [run.directory.path / folder / "checkpoints/final" for run in runs]
        plainly, swapped = (read_checkpoint(place).tensors for place in places)
        assert plainly and plainly == swapped


@pytest.mark.parametrize("execution", [{}, {"groups": 2}, {"groups": 4, "window": 4}])
def test_a_clipped_student(tmp_path, execution):
    """The WRITEs of the student wait for the norm of the step; the teacher has no gradients."""
    recipe = {"clip_global_norm": 0.05}
    run = train(tmp_path / "run", 1, recipe=recipe, execution=execution)
    assert differences(run, plain(clip=0.05)) == []


@pytest.mark.parametrize(
    "execution",
    [long({}), {"groups": 2}, {"order": "model-parallel"}, {"partly_clear": False}],
)
def test_one_loss_on_groups(tmp_path, execution):
    run = train(tmp_path / "run", 2, loss=npp.losses.Contrastive(), execution=execution)
    assert differences(run, plain(backward=joined)) == []


@pytest.mark.parametrize("stages", [1, 2])
def test_a_forward_that_waits_for_other_passes_outputs_is_seen(tmp_path, monkeypatch, stages):
    """Each pass would wait for the outputs of the others before it begins."""

    def needs_all(tasks, work):
        return ReadyTasks.offered(tasks, work) and not work.unclear

    monkeypatch.setattr(ReadyTasks, "offered", ReadyTasks._is_ready, raising=False)
    monkeypatch.setattr(ReadyTasks, "_is_ready", needs_all)
    how = {"partly_clear": False, "order": "paper", "timeout_seconds": 1.0}
    with pytest.raises(npp.NaspipeError, match=r"0\.0[FB]@0 (waits for|has no input)"):
        train(tmp_path / "run", stages, loss=npp.losses.Contrastive(), execution=how)


def test_a_tree_of_passes(tmp_path, monkeypatch):
    """Of two passes it is the plain loop's sum; of four, the same one on any groups."""
    inject_delays(monkeypatch, 5)
    tree, two = {"recipe": {"reduction": "tree"}}, {"execution": {"groups": 2}}
    run = train(tmp_path / "two", 2, batches=1, **tree, **two)
    assert differences(run, plain(batches=1)) == []
    runs = [
        train(tmp_path / str(groups), execution={"groups": groups, "window": 1}, **tree)
        for groups in (1, 2, 4)
    ]
    places = [each.directory.path / "teacher/checkpoints/final" for each in runs]
    places += [each.directory.checkpoint("final") for each in runs]
    found = [read_checkpoint(place).tensors for place in places]
    for first, *others in (found[:3], found[3:]):
        assert first and all(each == first for each in others)


@pytest.mark.parametrize("buffers", ["own", "copied", "averaged"])
@pytest.mark.parametrize(("mode", "groups"), [("train", 1), ("eval", 1), ("eval", 2)])
def test_norms_of_the_teacher(tmp_path, mode, groups, buffers):
    how = {"mode": mode, "buffers": buffers}
    run = train(tmp_path / "run", 2, teacher=how, execution={"groups": groups})
    assert differences(run, plain(mode=mode, buffers=buffers)) == []


@pytest.mark.parametrize(
    ("lag", "execution"),
    [
        long(1, {"window": 4}),
        (1, {"groups": 2, "window": 1}),
        (2, {"groups": 2}),
        (0, {"window": 64}),
    ],
)
def test_delays_and_windows(tmp_path, monkeypatch, lag, execution):
    """Messages are late and overtake one another; blocks take their time."""
    inject_delays(monkeypatch, 3 + lag)
    run = train(tmp_path / "run", 2, lag=lag, execution=execution)
    assert differences(run, plain(lag)) == []


def test_the_log_shows_what_was_read(tmp_path):
    """Step y reads the version of step y - 2."""
    run = train(tmp_path / "run", 2, lag=1)
    teacher = read_run_accesses(run.directory.path / "teacher")
    reads = {(a.layer, a.sequence_id): a.version for a in teacher if a.kind.name == "FORWARD"}
    assert len(reads) == 4 * 4 * STEPS
    for (_, number), version in reads.items():
        step = number // 4
        assert version == (-1 if step < 2 else 4 * (step - 1) - 1)


def test_the_report_shows_the_teacher(tmp_path):
    run = train(tmp_path / "run", 2)
    tables = run_tables(read_run(run.directory.path), "run")
    assert sum(tables["wait_totals_ns"]["teacher"]) > 0
    assert tables["numbers"]["bubble_with_teacher"] < tables["numbers"]["bubble_ratio"]


def test_steps_differ_from_the_second_on(tmp_path):
    now, older = (train(tmp_path / f"{lag}", lag=lag).losses for lag in (0, 1))
    assert now[:4] == older[:4]
    assert now[4:8] != older[4:8]


def test_it_is_interrupted_and_goes_on(tmp_path):
    data = Ends(spaces.vectors, 9, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError):
        train(tmp_path / "run", 2, lag=2, data=data, steps=20, execution={"window": 8})
    run = train(tmp_path / "run", 3, lag=2, data=Calm(spaces.vectors), steps=20, resume=True)
    assert 0 < run.manifest["life"]["first"][0] == run.manifest["life"]["first"][1] < 80
    assert differences(run, plain(2, steps=20)) == []


def test_a_stage_is_killed(tmp_path):
    data = Ends(spaces.vectors, 17, kill, tmp_path / "marker")
    execution = {"checkpoint_every": 2, "max_restarts": 1}
    run = train(tmp_path / "run", 2, lag=1, data=data, steps=14, execution=execution)
    assert run.manifest["life"]["generation"] == 1
    assert differences(run, plain(1, steps=14)) == []


def test_a_supernet_and_its_teacher(tmp_path):
    """Layers that a step does not use stay as they are, in both networks."""

    def choice(a, b):
        return npp.Block([partial(nn.Linear, a, b) for _ in range(3)])

    space = npp.Space("choices", [choice(16, 16), choice(16, 16), choice(16, 10)])

    def supernet(groups, stages, lag, passes="accumulate:2"):
        return npp.train(
            space, spaces.vectors, npp.losses.SoftTarget(), steps=12, seed=SEED, stages=stages,
            run_dir=tmp_path / f"{groups}x{stages}-{lag}-{passes}", recipe={"passes": passes},
            execution={"groups": groups}, teacher=npp.Momentum(0.9, lag=lag),
        )  # fmt: skip

    several = [supernet(1, stages, 1, "subnets:2").losses for stages in (1, 2)]
    assert several[0] == several[1]
    with pytest.raises(npp.ConfigError, match="expected one subnet a step with a momentum teacher"):
        supernet(2, 1, 1, "subnets:2")
    runs = [supernet(*how) for how in ((1, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 0))]
    for place in ("", "teacher"):
        paths = [run.directory.path / place for run in runs]
        *same, other = compare_runs(paths)
        assert all(each.is_identical for each in same) and not other.is_identical
    teacher = npp.Run(space, runs[0].directory.path / "teacher")
    found = npp.search_subnets(
        teacher, spaces.vectors, nn.CrossEntropyLoss(), held_out=spaces.vectors, budget=2,
        stages=2, validate=1, calibrate=0,
    )  # fmt: skip
    assert found.path.is_dir()
    drawn = read_stream(teacher.directory.stream)
    used = {pair for choices in drawn for pair in enumerate(choices)}
    for number, candidate in used:
        mine, its = (run.layer(number, candidate).weight for run in (teacher, runs[0]))
        assert not torch.equal(mine, its)
