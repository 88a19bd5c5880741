"""Blockwise distillation: every student block's bits are those of a plain loop."""

from __future__ import annotations

import copy
import time
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.config.partition import Partition
from naspipe.store.access_log import read_run_accesses
from naspipe.store.run_directory import RunDirectory
from naspipe.streams.stream_file import read_stream
from naspipe.worker.blocks.compute import StageCompute
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_torch
from tests.equivalence.test_timing_and_mutations import inject_delays
from tests.faults.helpers import Calm, Ends, interrupt
from tests.oracle import PlainLoop
from tests.thinned import long

SEED, LR, STEPS = 4, 0.05, 10


def teachers():
    torch.manual_seed(5)
    return [
        nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU()),
        nn.Sequential(nn.Linear(24, 24), nn.Dropout(0.5), nn.Tanh()),
        nn.Sequential(nn.Linear(24, 10)),
    ]


def students():
    def wide(a, b, hidden):
        return nn.Sequential(
            nn.Linear(a, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, b)
        )

    def choice(a, b):
        return npp.Block([lambda h=h: wide(a, b, h) for h in (8, 12, 16)])

    return [
        npp.Space("first", [choice(16, 20), choice(20, 24)]),
        npp.Space("second", [choice(24, 24)]),
        npp.Space("third", [npp.Shared("only", lambda: nn.Linear(24, 10))]),
    ]


def distill(path, stages, *, data=spaces.vectors, steps=STEPS, **more):
    return npp.distill_blockwise(
        teachers(), students(), data, steps=steps, stages=stages, seed=SEED, lr=LR, run_dir=path,
        optimizer_options={"momentum": 0.9}, **more,
    )  # fmt: skip


def plain_loops(
    runs, *, block_after_block=False, steps=STEPS, passes=1, norms="ordered", device="cpu"
):
    """The teacher through a batch, then one step of each block; or one block to its end."""
    blocks = [each.eval().to(device) for each in teachers()]
    loops, streams = [], []
    for number, run in enumerate(runs):
        factories = [block.candidates for block in run.space.blocks]
        fields = [["input"], *[[]] * (len(factories) - 1)]
        loops.append(
            PlainLoop(
                factories,
                fields,
                {},
                SEED + number,
                "SGD",
                LR,
                {"momentum": 0.9},
                norms=norms,
                device=device,
            )
        )
        chains = [run.space.chain(each) for each in read_stream(run.directory.stream)]
        streams.append(chains)

    def step(number, y):
        batches, lessons = [], []
        for each in range(y * passes, (y + 1) * passes):
            batch = spaces.vectors(SEED, each)
            with torch.no_grad():
                x = batch["input"].to(device)
                for block in blocks[:number]:
                    x = block(x)
                lessons.append(blocks[number](x))
            batches.append({**batch, "input": x})
        lesson = iter(lessons)

        def loss(output, _):
            if number == len(blocks) - 1:
                return functional.cross_entropy(output, next(lesson).softmax(1))
            return functional.mse_loss(output, next(lesson))

        took = [(streams[number][y * passes], batch) for batch in batches]
        loops[number].take(y, took, loss, averages_loss=passes > 1)

    with plain_torch():
        places = [(y, n) for y in range(steps) for n in range(len(blocks))]
        for y, n in sorted(places, key=lambda place: place[::-1] if block_after_block else place):
            step(n, y)
    return loops


def check(found, **how):
    for run, loop in zip(found.blocks, plain_loops(found.blocks, **how), strict=True):
        assert_same_bits(run, loop)


@pytest.mark.parametrize(
    ("stages", "execution"),
    [
        long(1, {}),
        (2, {"recompute": True}),
        (2, {"window": 2, "partition": "pairs"}),
        (2, {"memory_budget": "2x", "partition": "packed"}),
        (3, {"checkpoint_every": 3, "partition": "layers"}),
        (3, {"order": "model-parallel", "partition": "pairs", "timeout_seconds": 5.0}),
        long(4, {"checkpoint_every": 4}),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, stages, execution):
    found = distill(tmp_path / "run", stages, execution=execution)
    check(found)
    check(found, block_after_block=True)


@pytest.mark.parametrize("relay", ["barrier", "apart"])
def test_other_ways_to_relay_leave_the_same(tmp_path, relay):
    check(distill(tmp_path / "run", 2, relay=relay))


@pytest.mark.parametrize("norms", ["ordered", "deferred"])
@pytest.mark.parametrize("stages", [1, 4])
def test_passes_of_a_step_on_several_stages(tmp_path, monkeypatch, stages, norms):
    if stages > 1:
        inject_delays(monkeypatch, 1)
    recipe = {"passes": "accumulate:3", "norms": norms}
    found = distill(
        tmp_path / "run", stages, recipe=recipe, execution={"partition": "hybrid"}, steps=5
    )
    check(found, steps=5, passes=3, norms=norms)
    if stages > 1:
        cuts = [each.directory.read_manifest()["execution"]["partitions"] for each in found.blocks]
        assert max(map(len, cuts)) > 1


@pytest.mark.parametrize("partition", [long("pairs"), "free", "layers"])
@pytest.mark.parametrize("window", [1, 3])
def test_held_outputs_of_a_run_are_bounded_by_windows(tmp_path, monkeypatch, partition, window):
    """A window's for each end of a tap on a stage, with a last student that is far behind."""
    run_block = StageCompute.run_block

    def slowly(self, task, *rest):
        time.sleep(0.005 * (task.stream == 2))
        return run_block(self, task, *rest)

    monkeypatch.setattr(StageCompute, "run_block", slowly)
    found = distill(tmp_path / "run", 2, window=window, execution={"partition": partition})
    folders = [*(f"block-{n}" for n in range(3)), *(f"teacher-{n}" for n in range(3))]
    texts = [
        RunDirectory(tmp_path / "run" / each).read_manifest()["execution"]["partitions"]
        for each in folders
    ]
    cuts = [Partition(tuple(map(int, text.split(":")))) for (text,) in texts]
    taps = [((3, 0), (0, 1)), ((4, 0), (1, 0)), ((5, 0), (2, 0)), ((3, 0), (1, 0)),
            ((3, 0), (4, 0)), ((4, 0), (2, 0)), ((4, 0), (5, 0))]  # fmt: skip
    ends = Counter(cuts[stream].stage_of(block) for tap in taps for stream, block in tap)
    held = [each["most_tapped"] for each in found.blocks[0].manifest["measured"]["stages"]]
    assert all(0 < most <= window * ends[stage] for stage, most in enumerate(held)), (held, ends)
    assert sum(held) > window * 2, "some wait"


def test_delays(tmp_path, monkeypatch):
    inject_delays(monkeypatch, 2)
    check(distill(tmp_path / "run", 2))


def test_the_teacher_reads_each_batch_once(tmp_path):
    distill(tmp_path / "run", 2)
    for block in range(3):
        reads = read_run_accesses(tmp_path / f"run/teacher-{block}")
        assert len(reads) == len({(a.layer, a.sequence_id) for a in reads}) == STEPS
        assert {access.kind.name for access in reads} == {"FORWARD"}


def test_it_is_interrupted_and_goes_on_on_other_stages(tmp_path):
    data = Ends(spaces.vectors, 9, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError):
        distill(tmp_path / "run", 2, data=data, steps=80, execution={"window": 3})
    found = distill(tmp_path / "run", 3, data=Calm(spaces.vectors), steps=80, resume=True)
    check(found, steps=80)


def test_it_is_interrupted_after_some_blocks_are_through(tmp_path, monkeypatch):
    """With a teacher for each block, the first stage may have nothing left to stop."""
    run_block, steps = StageCompute.run_block, 40

    def slowly(self, task, *rest):
        time.sleep(0.05 * (task.stage > 0))
        return run_block(self, task, *rest)

    monkeypatch.setattr(StageCompute, "run_block", slowly)
    data = Ends(spaces.vectors, steps - 1, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError, match="with a checkpoint at subnet"):
        distill(tmp_path / "run", 3, data=data, steps=steps, relay="apart")
    monkeypatch.setattr(StageCompute, "run_block", run_block)
    calm = Calm(spaces.vectors)
    found = distill(tmp_path / "run", 2, data=calm, steps=steps, relay="apart", resume=True)
    check(found, steps=steps)


def test_the_blocks_become_one_network(tmp_path):
    found = distill(tmp_path / "run", 1)
    network = found.network([[0, 1], [2], []])
    x = spaces.vectors(SEED, 0)["input"]
    state = x
    for run, choices in zip(found.blocks, ([0, 1], [2], []), strict=True):
        parts = [run.layer(n, c) for n, c in enumerate(choices)] or [run.shared("only")]
        for part in parts:
            state = part.eval()(state)
    assert torch.equal(network(x), state) and state.shape == (len(x), 10)


def test_bad_input_is_one_line_and_nothing_is_written(tmp_path):
    for teacher, student, text in (
        (teachers(), students()[:2], "a student for each block of the teacher, found 2 for 3"),
        ([], [], "found 0 for 0"),
        (teachers(), [*students()[:2], nn.Linear(24, 9)], "student block 2 to have the shape"),
    ):
        with pytest.raises(npp.ConfigError, match=text) as caught:
            npp.distill_blockwise(
                copy.deepcopy(teacher), student, spaces.vectors, steps=2, run_dir=tmp_path / "run"
            )
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
