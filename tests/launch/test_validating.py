"""Validation on the way: the figures of a plain evaluation, and a training that notices nothing."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import signal
import time

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.store.losses import read_metrics
from naspipe.store.validations import read_validations
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import oracle_of, plain_torch
from tests.faults.helpers import LAUNCHER, Calm, Ends, assert_identical, interrupt
from tests.search.plain import held_out, judge
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
EVERY = {"validate_every": 8, "validate_subnets": "2", "validate_batches": 2,
         "validate_calibrate": 3, "window": 4}  # fmt: skip


def is_of_the_run():
    """Whether this process is none that checks the input before the run begins."""
    is_check = multiprocessing.current_process().name == "naspipe-batch"
    return os.getpid() != LAUNCHER and not is_check


def train(path, data=spaces.vectors, *, make=spaces.mixed, stages=1, resume=False, execution=None,
          held=None, observer=None, **more):  # fmt: skip
    return npp.train(
        make(), data, LOSS, steps=20, seed=1, lr=0.02, stages=stages, run_dir=path, resume=resume,
        execution={**EVERY, **(execution or {})}, held_out=held or held_out(spaces.vectors),
        observer=observer, **more,
    )  # fmt: skip


def lines_of(run):
    return run.directory.validation.read_bytes()


def plain_figures(run, data, chains):
    """Of a loop over naspipe's modules alone, at each cut: each subnet's loss, top-1, top-5."""
    loop = oracle_of(run.space, 1, "SGD", 0.02)
    figures = {}
    batches = [[data(1, n) for n in range(3)], [held_out(data)(1, n) for n in range(2)]]
    with plain_torch():
        for y, choices in enumerate(read_stream(run.directory.stream), 1):
            loop.step(y - 1, run.space.chain(choices), data(1, y - 1), LOSS)
            if y in (8, 16, 20):
                judged = copy.deepcopy(loop)
                figures[y] = [judge(judged, chain, *batches, LOSS) for chain in chains]
    return figures


@pytest.mark.parametrize(
    ("make", "data"), [(spaces.mixed, spaces.vectors), (spaces.maps, spaces.images)]
)
def test_figures_are_the_plain_loops_and_the_training_is_the_same(tmp_path, make, data):
    held = held_out(data)
    one, two = (
        train(tmp_path / f"on-{stages}", data, make=make, stages=stages, held=held)
        for stages in (1, 2)
    )
    without = train(tmp_path / "without", data, make=make, execution={"validate_every": 0})
    assert_identical(without, one)
    assert_identical(without, two)
    assert lines_of(one) == lines_of(two)
    assert not without.directory.validation.exists()
    found = one.validations
    choices = [each.choices for each in found[0].subnets]
    assert one.manifest["validation"]["subnets"] == [list(each) for each in choices]
    expected = plain_figures(one, data, [one.space.chain(each) for each in choices])
    for each in found:
        scores = [tuple(subnet.scores.values()) for subnet in each.subnets]
        assert scores == expected[each.sequence_id]
        assert each.scores["loss"] == (scores[0][0] + scores[1][0]) / 2
    assert [each.sequence_id for each in found] == [8, 16, 20]
    assert len({each.scores["loss"] for each in found}) == 3


@pytest.mark.parametrize("stages", [long(1), 2])
def test_a_resume_fills_the_gap_and_repeats_nothing(tmp_path, stages):
    whole = train(tmp_path / "whole", stages=stages)
    path, narrow = tmp_path / "run", {"window": 2}
    with pytest.raises(RunInterruptedError):
        ends = Ends(spaces.vectors, 16, interrupt, tmp_path / "marker")
        train(path, ends, stages=stages, execution=narrow)
    log = path / "validation.jsonl"
    known = log.read_bytes().splitlines(keepends=True)
    later = lines_of(whole).splitlines(keepends=True)[0].replace(b": 8,", b": 20,", 1)
    log.write_bytes(b"".join(known[:1]) + later)  # the validation at 16 did not come to its end
    run = train(path, Calm(spaces.vectors), stages=3 - stages, resume=True)
    assert lines_of(run) == lines_of(whole)
    rows = [row for row in read_metrics(run.directory.metrics) if "validation/loss" in row]
    assert {row["step"] for row in rows} == {7, 15, 19}


def test_checkpoints_wait_to_be_judged(tmp_path):
    """The first validation ends when the last step is done: nothing is pruned before."""
    is_done = multiprocessing.get_context("fork").Event()

    class Told:
        def __getattr__(self, name):
            return lambda *arguments: None

        def on_loss(self, stream, sequence_id, loss):
            if sequence_id == 19:
                is_done.set()

    def late(seed, number):
        if is_of_the_run():
            is_done.wait()
        return held_out(spaces.vectors)(seed, number)

    often = {"validate_every": 2, "keep_checkpoints": 1, "validate_subnets": "1"}
    run = train(tmp_path / "run", execution=often, held=late, observer=Told())
    found = read_validations(run.directory.validation)
    assert [each.sequence_id for each in found] == list(range(2, 21, 2))


def test_subnets_of_a_file_averages_and_decimals(tmp_path):
    path = tmp_path / "subnets.jsonl"
    path.write_text("[0, 1, 2, 3, 0, 1]\n[1, 1, 1, 1, 1, 1]\n[2, 2, 2, 2, 2, 2]\n")
    listed = {"validate_subnets": f"file:{path}", "checkpoint_every": 4}
    recipe = {"ema": 0.9}
    run = train(tmp_path / "run", execution=listed, recipe=recipe)
    averaged = {**listed, "validate_ema": True}
    ema = train(tmp_path / "ema", execution=averaged, recipe=recipe)
    assert_identical(run, ema)
    found, other = (read_validations(each.directory.validation) for each in (run, ema))
    assert [each.choices[0] for each in found[0].subnets] == [0, 1, 2]
    assert found[-1].scores["loss"] != other[-1].scores["loss"]
    row = json.loads(lines_of(run).splitlines()[-1])
    assert row["loss"] == found[-1].scores["loss"] and row["steps"] == 20
    search = npp.search_subnets(
        ema, spaces.vectors, LOSS, held_out=held_out(spaces.vectors), strategy=f"file:{path}",
        budget=3, calibrate=3, validate=2, ema=True,
    )  # fmt: skip
    assert [each.scores.loss for each in search.candidates] == [
        each.scores["loss"] for each in other[-1].subnets
    ]


def test_what_goes_wrong_ends_the_run(tmp_path):
    def broken(seed, number):
        if is_of_the_run():
            raise OSError("gone")
        return held_out(spaces.vectors)(seed, number)

    def killed(seed, number):
        if is_of_the_run():
            os.kill(os.getpid(), signal.SIGKILL)
        return held_out(spaces.vectors)(seed, number)

    with pytest.raises(npp.StageFailedError, match=r"validation at subnet 8(.|\n)*OSError: gone"):
        train(tmp_path / "raises", held=broken)
    with pytest.raises(npp.StageFailedError, match=r"validation at subnet 8.* on \S+: .*signal 9"):
        train(tmp_path / "dies", held=killed, stages=2)


@pytest.mark.parametrize(
    ("how", "limit", "said"),
    [
        (lambda: time.sleep(60), "timeout_seconds",
         r"block 0 .* on \S+: it has been at this for . s"),
        (lambda: os.kill(os.getpid(), signal.SIGSTOP), "silence_seconds",
         r" on \S+: no sign of life from \S+ for . s: stopped or"),
    ],
)  # fmt: skip
def test_a_validation_that_never_ends_is_given_up(tmp_path, how, limit, said):
    """It is at the final checkpoint, for which the launcher waits."""

    def hangs(seed, number):
        if is_of_the_run() and os.getpriority(os.PRIO_PROCESS, 0) == 0:
            how()
        return held_out(spaces.vectors)(seed, number)

    start = time.monotonic()
    with pytest.raises(
        npp.StageFailedError, match=r"in the validation at subnet [0-9]+, .*" + said
    ):
        train(tmp_path / "run", held=hangs, execution={limit: 1.5})
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("execution", "said"),
    [
        ({"checkpoint_every": 3}, "validate_every: expected a multiple of checkpoint_every, 3"),
        ({"validate_subnets": "some"}, "validate_subnets: expected a number of subnets"),
        ({"validate_ema": True}, "expected a recipe that keeps moving averages"),
        (
            {"validate_batches": 0},
            "expected a number of held-out batches, as these data do not say",
        ),
    ],
)
def test_bad_input(tmp_path, execution, said):
    with pytest.raises(npp.ConfigError, match=said):
        train(tmp_path / "run", execution=execution)
    assert not (tmp_path / "run").exists()


def test_data_that_do_not_fit(tmp_path):
    with pytest.raises(npp.ConfigError, match="target"):
        train(tmp_path / "run", held=lambda seed, number: {"input": spaces.vectors(1, 1)["input"]})
    with pytest.raises(npp.ConfigError, match="give held_out=FUNCTION, or your data an"):
        npp.train(
            spaces.mixed(), spaces.vectors, LOSS, steps=4, execution=EVERY, run_dir=tmp_path / "run"
        )
    with pytest.raises(npp.ConfigError, match="with checkpoints, validation"):
        train(tmp_path / "run", policy="asp")
    assert not (tmp_path / "run").exists()
