"""Steps of several passes: accumulation and the sandwich rule, with the plain loop's bits."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.checks.sketched import buffered_layers
from naspipe.config.ids import AccessKind, LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.steps import Steps, parse_passes
from naspipe.engine.builder import build_controller
from naspipe.engine.events import TaskKind
from naspipe.engine.inputs import Clearance
from naspipe.engine.orders import PaperOrder
from naspipe.store.access_log import read_access_log, read_run_accesses
from naspipe.store.compare import RecordedRun
from naspipe.store.event_log import read_events
from naspipe.streams.stream_file import read_stream
from naspipe.worker.blocks.ports import Fold
from naspipe.worker.blocks.segment import Segment
from tests.engine.replay import replay
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, Ends, fail, interrupt
from tests.mutants import turns_red
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
ALL = {"clip_global_norm": 1.0, "ema": 0.9}
KINDS = ["accumulate:3", "sandwich:2"]


@pytest.mark.parametrize("passes", KINDS)
@pytest.mark.parametrize(
    ("stages", "execution", "more"),
    [
        ((1, 2, 4), {}, {}),
        ((2,), {"recompute": True, "memory_budget": "0.001x"}, ALL),  # the least that works
        ((3,), {"order": "critical-path", "window": 32}, ALL),
        ((3,), {"order": "model-parallel"}, ALL),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, monkeypatch, passes, stages, execution, more):
    """Batch normalisation, dropout, absent gradients, a lagging stem; layers on the move."""
    restless(monkeypatch)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=stages, steps=8, lr=0.02,
        options={"momentum": 0.9}, recipe={"passes": passes, **more}, execution=execution,
    )  # fmt: skip


@pytest.mark.parametrize("is_broken", [False, True])
def test_activations_are_computed_again_with_the_buffers_of_their_pass(
    tmp_path, monkeypatch, is_broken
):
    """Without a memory budget, so that a later pass has changed the buffers in the meantime."""
    with ExitStack() as stack:
        if is_broken:
            monkeypatch.setattr(Segment, "_recompute", lambda segment: segment._compute({}))
            stack.enter_context(turns_red("tensors differ, among them .*running_"))
        check(
            tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(2,), steps=8,
            recipe={"passes": "accumulate:3"}, execution={"recompute": True, "window": 8},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("passes", "head"), [("accumulate:3", npp.Lag(1)), ("sandwich:2", npp.Frozen())]
)
def test_heads_that_order_no_passes(tmp_path, passes, head):
    check(
        tmp_path, spaces.mixed(npp.Exact(), head), spaces.vectors, LOSS, stages=(2,), steps=6,
        optimizer="Adam", lr=0.01, recipe={"passes": passes},
    )  # fmt: skip


def test_bf16_students(tmp_path):
    check(
        tmp_path, spaces.memory(spaces.HandOn), spaces.sequences, LOSS, stages=(2,), steps=5,
        optimizer="Adam", lr=1e-3, recipe={"passes": "sandwich:1"}, execution={"recompute": True},
        bf16=True,
    )  # fmt: skip


def test_a_sandwich_is_the_largest_the_smallest_and_drawn_ones(tmp_path):
    run = npp.train(
        spaces.mixed(), spaces.vectors, LOSS, steps=3, seed=1, run_dir=tmp_path / "run",
        recipe={"passes": "sandwich:2"},
    )  # fmt: skip
    stream = read_stream(run.directory.stream)
    assert stream[::4] == [(3,) * 6] * 3 and stream[1::4] == [(2,) * 6] * 3
    drawn = npp.train(spaces.mixed(), spaces.vectors, LOSS, steps=6, seed=1, run_dir=tmp_path / "d")
    random = [choices for y, choices in enumerate(stream) if y % 4 > 1]
    assert random == read_stream(drawn.directory.stream)
    assert run.manifest["passes_per_step"] == 4 and len(run.losses) == 12


@pytest.mark.parametrize(("passes", "how"), [(KINDS[0], fail), (KINDS[1], interrupt)])
def test_it_goes_on_behind_a_whole_step(tmp_path, passes, how):
    def train(data, stages, **kw):
        return npp.train(
            spaces.mixed(), data, LOSS, steps=10, seed=1, lr=0.05, stages=stages,
            recipe={"passes": passes, **ALL}, run_dir=tmp_path / "run",
            execution={"checkpoint_every": 2, "window": 8}, **kw,
        )  # fmt: skip

    count = parse_passes(passes).passes
    at = 7 if passes.startswith("sandwich") else 7 * count + 1
    with pytest.raises(npp.NaspipeError, match=r"injected|interrupted"):
        train(Ends(spaces.vectors, at, how, tmp_path / "marker"), 2)
    run = train(Calm(spaces.vectors), 3, resume=True)
    first = run.manifest["life"]["first"][0]
    assert first > 0 and first % count == 0
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05, passes=passes, **ALL
    )
    assert_same_bits(run, oracle)


def test_streams_side_by_side(tmp_path):
    def workload(seed):
        return npp.workload(
            spaces.mixed(),
            spaces.vectors,
            LOSS,
            seed=seed,
            steps=5,
            recipe={"passes": "sandwich:1"},
        )

    runs = npp.train_together(
        [workload(1), workload(2)], npp.Execution(stages=2), tmp_path / "both"
    )
    for run, seed in zip(runs, (1, 2), strict=True):
        oracle = plain_loop(
            run.space, spaces.vectors, LOSS, run, seed=seed, optimizer="SGD", lr=0.05,
            passes="sandwich:1",
        )  # fmt: skip
        assert_same_bits(run, oracle)


@pytest.mark.parametrize("stages", [long(1), 3])
def test_the_recipe_sandwich(tmp_path, stages):
    """Its rate follows from the step, and what a controller was told can be replayed."""
    run = npp.train(
        spaces.mixed(), spaces.vectors, LOSS, steps=5, seed=1, stages=stages, recipe="sandwich",
        run_dir=tmp_path / "run", execution={"record_events": True},
    )  # fmt: skip
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", passes="sandwich:2",
        lr=lambda step: 0.03 * 0.5 * (1.0 + math.cos(math.pi * (step / 5))),
        options={"momentum": 0.9, "weight_decay": 4e-5},
    )  # fmt: skip
    assert_same_bits(run, oracle)
    assert_replays(run, stages, parse_passes("sandwich:2"))


def assert_replays(run, stages, steps):
    order = run.manifest["execution"]["order"]
    rules = RecordedRun(run.directory.path).labels.rules
    for stage in range(stages):
        buffered = {LayerId(0, *place) for place in buffered_layers(run.space)}
        controller = build_controller(
            stage, [rules], order=order, starts_partly_clear=True, steps=steps,
            buffered=buffered,
        )  # fmt: skip
        commands = replay(controller, read_events(run.directory.events_log(stage)))
        accesses = [command.access for command in commands if hasattr(command, "access")]
        assert accesses == read_access_log(run.directory.access_log(stage))


def test_what_a_gated_controller_was_told_can_be_replayed(tmp_path):
    run = npp.train(
        spaces.mixed(), spaces.vectors, LOSS, steps=3, seed=1, stages=2, run_dir=tmp_path / "run",
        recipe={"passes": "accumulate:2", **ALL}, execution={"record_events": True},
    )  # fmt: skip
    assert_replays(run, 2, Steps(2, is_gated=True))


def last_first(fold, number, gradients):
    """A sum that begins with the pass that came last."""
    own = {name: gradient.clone() for name, gradient in gradients.items()}
    fold.collected = [own, *getattr(fold, "collected", ())]
    fold._sum = {}
    for each in fold.collected:
        for name, gradient in each.items():
            known = fold._sum.get(name)
            fold._sum[name] = gradient if known is None else known + gradient


def no_order(clearance, ticket, sequence_id):
    return set()


def youngest_first(order, task, priority):
    return (task.kind is TaskKind.FORWARD, -task.sequence_id, task.stream)


@pytest.mark.parametrize("is_broken", [False, True])
def test_passes_in_any_order_but_where_there_are_buffers(tmp_path, monkeypatch, is_broken):
    """Younger passes go first wherever they may; unless nothing holds them back at all."""
    monkeypatch.setattr(PaperOrder, "key", youngest_first)
    with ExitStack() as stack:
        if is_broken:
            monkeypatch.setattr(Clearance, "_before", no_order)
            stack.enter_context(turns_red("began before .*, an earlier pass of its step"))
        (run,) = check(
            tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(2,), steps=6,
            recipe={"passes": "subnets:4"}, execution={"order": "paper"},
        )  # fmt: skip
        forwards = [
            each
            for each in read_run_accesses(run.directory.path)
            if each.kind is AccessKind.FORWARD
        ]
        last, swapped = {}, set()
        for each in sorted(forwards, key=lambda each: each.start_ns):
            place = (each.layer, each.sequence_id // 4)
            swapped |= {each.layer} if last.get(place, -1) > each.sequence_id else set()
            last[place] = each.sequence_id
        buffered = {LayerId(0, *place) for place in buffered_layers(run.space)}
        assert swapped and not swapped & buffered


@pytest.mark.parametrize("is_broken", [False, True])
def test_students_wait_for_their_teacher_in_any_order(tmp_path, monkeypatch, is_broken):
    """Also where a stage would rather run them first; unless nobody holds them back."""
    monkeypatch.setattr(PaperOrder, "key", youngest_first)
    with ExitStack() as stack:
        if is_broken:
            monkeypatch.setattr(Clearance, "_before", no_order)
            stack.enter_context(turns_red("began before .*, an earlier pass of its step"))
        check(
            tmp_path, spaces.mixed(npp.Exact(), npp.Frozen()), spaces.vectors, LOSS, stages=(2,),
            steps=6, recipe={"passes": "sandwich:2"}, execution={"order": "paper"},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [(Fold, "add", last_first), (Steps, "batch", lambda steps, y: y)],
    ids=["another order of sums", "other batches"],
)
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with turns_red("first loss that differs"):
        check(
            tmp_path, spaces.mixed(npp.Exact(), npp.Frozen()), spaces.vectors, LOSS, stages=(2,),
            steps=8, recipe={"passes": "sandwich:2"},
        )  # fmt: skip


def squared(output, target):
    return output.square().mean()


class Own(nn.CrossEntropyLoss):
    """A loss that says itself how a student learns."""

    def distill(self, output, taught, target):
        return functional.cross_entropy(output, taught.softmax(1))


def test_a_loss_with_its_own_distillation(tmp_path):
    check(
        tmp_path, spaces.mixed(), spaces.vectors, Own(), stages=(2,), steps=4,
        recipe={"passes": "sandwich:1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({"loss": squared, "recipe": {"passes": "sandwich:1"}}, "a method distill"),
        ({"policy": "bsp", "recipe": {"passes": "accumulate:2"}}, "policy bsp: expected csp"),
        ({"sampler": "evolution", "recipe": {"passes": "accumulate:2"}}, "expected passes=one"),
    ],
)
def test_what_cannot_be_had_is_refused(tmp_path, kw, message):
    arguments = {"loss": LOSS, **kw}
    with pytest.raises(npp.ConfigError, match=message):
        npp.train(spaces.mixed(), spaces.vectors, steps=2, run_dir=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["", "two", "accumulate:0", "sandwich", "sandwich:-1", "one:1"])
def test_other_passes_are_refused(text):
    with pytest.raises(npp.ConfigError, match="passes: expected one, accumulate:N"):
        Recipe(passes=text)
