"""Placements side by side: what the plan says is what the run does."""

from __future__ import annotations

import pytest

import naspipe as npp
from naspipe.api.distill import blockwise_streams
from naspipe.api.teacher_plans import blockwise_plans
from naspipe.cli.main import main
from naspipe.config.execution import Execution
from naspipe.plan import simulation
from tests.equivalence import spaces
from tests.equivalence.test_blockwise import students, teachers


def define(passes):
    return blockwise_streams(
        teachers(), students(), spaces.vectors, steps=8, recipe={"passes": passes}
    )


@pytest.fixture(scope="module")
def plans():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simulation, "PAUSE_NS", 0)  # these layers take less than a pause
        return _plans()


def _plans():
    return blockwise_plans(define, ["one", "accumulate:2"], [1, 2], Execution())


def test_every_placement_is_there_the_fastest_first(plans):
    speeds = [each.steps_per_second for each in plans if each.passes == "one"]
    assert speeds == sorted(speeds, reverse=True)
    found = {(each.passes, each.stages, each.placement) for each in plans}
    usual = {"free", "pairs", "packed", "layers"}
    assert {place for p, n, place in found if (p, n) == ("one", 2)} == usual
    dealt = {place for p, n, place in found if (p, n) == ("accumulate:2", 2)}
    assert dealt == usual | {"hybrid", "shared"}


def test_one_stage_has_all_and_moves_nothing(plans):
    alone = next(each for each in plans if each.stages == 1)
    assert alone.blocks == ("S0 S1 S2 T0 T1 T2",)
    assert alone.moved_bytes == 0 and alone.bubble_ratio < 0.01 and alone.memory_bytes > 0


def test_blocks_are_named_where_they_are(plans):
    pairs = next(each for each in plans if each.stages == 2 and each.placement == "pairs")
    for number in range(3):
        assert any({f"S{number}", f"T{number}"} <= set(each.split()) for each in pairs.blocks)
    assert pairs.moved_bytes > 0
    shared = next(each for each in plans if each.placement == "shared")
    assert all("S0/2" in each.split() for each in shared.blocks)


@pytest.mark.backward("whole")
def test_the_run_is_placed_as_planned(plans, tmp_path):
    pairs = next(each for each in plans if (each.passes, each.stages) == ("one", 2))
    run = npp.distill_blockwise(
        teachers(), students(), spaces.vectors, steps=8, stages=2, run_dir=tmp_path / "run",
        execution={"partition": pairs.placement},
    )  # fmt: skip
    for number, block in enumerate(run.blocks):
        (cut,) = block.directory.read_manifest()["execution"]["partitions"]
        bounds = list(map(int, cut.split(":")))
        here = [stage for stage in range(2) if bounds[stage + 1] > bounds[stage]]
        named = [stage for stage in range(2) if f"S{number}" in pairs.blocks[stage].split()]
        assert here == named or "*" in " ".join(pairs.blocks)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["plan", "proxyless"], "expected --teacher RUN, whose blocks teach it, found none"),
        (
            ["plan", "proxyless", "--teacher", "runs/x", "--streams", "2"],
            "--streams: expected nothing beside blocks with teachers",
        ),
    ],
)
def test_bad_input_is_one_line(capsys, words, text):
    assert main(words) == 2
    said = capsys.readouterr().err.strip()
    assert text in said and "\n" not in said
