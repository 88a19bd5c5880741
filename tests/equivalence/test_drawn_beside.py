"""Long streams, drawn and cut beside the training: the bits of those that are known before it."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

import naspipe
from naspipe.api import start_state as beginnings
from naspipe.config.errors import ConfigError, RunInterruptedError
from naspipe.inputs import subnet_sources as drawn_source
from tests.equivalence import spaces, test_teachers
from tests.equivalence.harness import assert_same_bits
from tests.faults.helpers import (
    LOSS,
    Calm,
    Ends,
    assert_identical,
    interrupt,
    interrupt_and_resume,
    train,
)

STEPS = 30


@pytest.fixture
def short(monkeypatch):
    """Streams count as long from 9 subnets on, and no more than 8 are known ahead."""
    for name, number in {"LONG": 8, "SHOWN": 6, "_AHEAD": 8, "_AT_ONCE": 3}.items():
        monkeypatch.setattr(drawn_source, name, number)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    path = tmp_path_factory.mktemp("known") / "run"
    return train(path, Calm(spaces.vectors), steps=STEPS, stages=2)


@pytest.mark.parametrize("stages", [1, 2])
def test_the_bits_are_those_of_a_stream_that_is_known(tmp_path, short, known, stages):
    run = train(tmp_path / "run", Calm(spaces.vectors), steps=STEPS, stages=stages)
    assert_identical(run, known)
    cuts = run.manifest["execution"]["partitions"]
    assert len(cuts) == (1 if stages == 1 else 0)  # of two stages: none was cut before it


def test_a_later_life_goes_on_with_the_same_stream(tmp_path, short, known):
    more = {"steps": STEPS}
    run = interrupt_and_resume(tmp_path, spaces.vectors, {"stages": 1}, {"stages": 2}, **more)
    assert_identical(run, known)
    lines = run.directory.stream.read_text().splitlines()
    assert len(lines) == STEPS
    manifest = {**run.manifest, "status": "interrupted"}
    run.directory.write_manifest(manifest)
    odd = [json.dumps([9 for _ in json.loads(lines[0])]), *lines[1:]]
    run.directory.stream.write_text("\n".join(odd) + "\n")
    (run.directory.checkpoints.path / "final").rename(tmp_path / "final")
    with pytest.raises(ConfigError, match="expected the stream that the sampler uniform draws"):
        train(run.directory.path, Calm(spaces.vectors), steps=STEPS, resume=True)


@pytest.mark.parametrize(
    ("recipe", "execution"),
    [
        ({"passes": "sandwich:1"}, {}),
        ({"passes": "accumulate:4", "clip_global_norm": 1.0}, {"groups": 2}),
    ],
    ids=["several passes", "groups"],
)
def test_steps_of_several_passes_are_drawn_whole(tmp_path, monkeypatch, recipe, execution):
    more = {"recipe": recipe, "steps": 8}
    known = train(tmp_path / "known", Calm(spaces.vectors), **more)
    for name, number in {"LONG": 8, "SHOWN": 6, "_AHEAD": 8, "_AT_ONCE": 3}.items():
        monkeypatch.setattr(drawn_source, name, number)
    run = train(tmp_path / "run", Calm(spaces.vectors), stages=2, execution=execution, **more)
    assert run.manifest["execution"]["partitions"] == []  # so it was drawn beside
    assert_identical(run, known)


def test_streams_that_share_a_pipeline_and_a_teacher_without_losses(tmp_path, short):
    """The teacher has no losses: its student's say how far its stream has to be known."""
    run = test_teachers.train(tmp_path / "run", 2, steps=STEPS, execution={"window": 4})
    assert run.manifest["execution"]["partitions"] == []
    assert_same_bits(run, test_teachers.plain_loop(run))


def test_a_teacher_without_losses_is_resumed(tmp_path, short):
    """The source of its stream is not given any scores, because there are none to read."""
    path = tmp_path / "run"
    data = Ends(spaces.vectors, 9, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError, match="with a checkpoint at subnet"):
        test_teachers.train(path, 2, data=data, steps=STEPS)
    run = test_teachers.train(path, 2, data=Calm(spaces.vectors), steps=STEPS, resume=True)
    assert run.manifest["life"]["first"][0] >= 9
    assert run.manifest["execution"]["partitions"] == []
    assert_same_bits(run, test_teachers.plain_loop(run))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"order": "latest-start"}, r"planning all 30 subnets .*: the order latest-start needs"),
        ({"sampler": "file"}, r"planning all 30 subnets .*: the sampler file:.* is a file"),
    ],
)
def test_what_is_planned_whole_is_said(tmp_path, short, capsys, more, said):
    path = tmp_path / "subnets.jsonl"
    path.write_text(f"{json.dumps([0] * len(spaces.mixed().candidate_counts))}\n" * STEPS)
    if "sampler" in more:
        more = {"sampler": f"file:{path}"}
    naspipe.train(
        spaces.mixed(), spaces.vectors, LOSS, steps=STEPS, run_dir=tmp_path / "run", progress=True,
        **more,
    )  # fmt: skip
    assert re.search(said, capsys.readouterr().err)


def test_the_directory_is_there_while_it_is_planned(tmp_path, monkeypatch):
    seen = []
    path = tmp_path / "run"

    def plan(*arguments, **named):
        seen.append(json.loads((path / "manifest.json").read_text())["status"])
        raise ConfigError("no plan today")

    monkeypatch.setattr("naspipe.api.training.make_plan", plan)
    with pytest.raises(ConfigError, match="no plan today"):
        train(path, Calm(spaces.vectors), steps=2)
    assert seen == [beginnings.PLANNING] and not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_one_that_is_asked_to_end_while_it_is_planned_leaves_nothing(tmp_path, monkeypatch, number):
    """Under torchrun the other hosts hear of it, too: they waited for their job."""
    path = tmp_path / "run"

    def plan(*arguments, **named):
        assert path.exists()
        os.kill(os.getpid(), number)

    monkeypatch.setattr("naspipe.api.training.make_plan", plan)
    before = signal.signal(number, signal.SIG_DFL)  # nohup has it ignored
    try:
        said = "before the training began"
        with pytest.raises(naspipe.RunInterruptedError, match=said) as caught:
            train(path, Calm(spaces.vectors), steps=2)
        assert (caught.value.signal_number, path.exists()) == (number, False)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_one_that_was_killed_while_it_was_planned_is_begun_anew(tmp_path, monkeypatch):
    path = tmp_path / "run"
    monkeypatch.setattr(beginnings, "_remove", lambda directories, above: None)
    monkeypatch.setattr("naspipe.api.training.make_plan", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(path, Calm(spaces.vectors), steps=2)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="ended while it was planned: there is nothing to go on"):
        train(path, Calm(spaces.vectors), steps=2, resume=True)
    with pytest.raises(ConfigError, match="exists and is not empty"):
        train(path, Calm(spaces.vectors), steps=2)
