"""Groups of stages: the bits of the plain loop, however many compute the passes of a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.wire.messages import ContributionMessage
from naspipe.worker.blocks.updates import StageUpdates
from naspipe.worker.driver import StageDriver
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, Ends, fail, interrupt, kill
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
MOMENTUM = {"momentum": 0.9}
ALL = {"clip_global_norm": 1.0, "ema": 0.9}


@pytest.mark.parametrize(
    ("groups", "stages", "passes", "more", "execution"),
    [
        long(2, (1, 2), 4, {}, {}),
        (2, (1, 2), 4, ALL, {"recompute": True}),
        (3, (1,), 4, {}, {"window": 32}),
        long(4, (1,), 4, ALL, {"window": 8}),
        (2, (1, 2), 3, ALL, {"memory_budget": "0.001x"}),  # the least that works
        long(2, (2,), 4, {}, {"memory_budget": "2x", "recompute": True, "window": 16}),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, monkeypatch, groups, stages, passes, more, execution):
    """Batch normalisation, dropout, absent gradients, a lagging stem; layers on the move."""
    restless(monkeypatch)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=stages, steps=8, lr=0.02,
        options=MOMENTUM, recipe={"passes": f"accumulate:{passes}", **more},
        execution={"groups": groups, **execution},
    )  # fmt: skip


@pytest.mark.parametrize("launch", ["layer", "partition", "end"])
@pytest.mark.parametrize(("groups", "stages", "more"), [(2, 2, ALL), (3, 1, {})])
def test_bits_whenever_sums_leave(tmp_path, monkeypatch, groups, stages, more, launch):
    restless(monkeypatch)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(stages,), steps=6, lr=0.02,
        options=MOMENTUM, recipe={"passes": "accumulate:4", **more},
        execution={"groups": groups, "reduction_launch": launch, "window": 8},
    )  # fmt: skip


def test_a_contribution_is_late(tmp_path, monkeypatch):
    """Worker 2 learns from worker 0 that step 0 is over when the others are at step 2."""
    accept, late = StageDriver._accept, []

    def accept_later(driver, message):
        is_share = driver._stage == 2 and isinstance(message, ContributionMessage)
        if is_share and (message.sender, message.sequence_id) == (0, 0):
            late.append(message)
            return
        accept(driver, message)
        if late and is_share and message.sequence_id == 8:
            accept(driver, late.pop())

    monkeypatch.setattr(StageDriver, "_accept", accept_later)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1,), steps=4, lr=0.02,
        recipe={"passes": "accumulate:4", "clip_global_norm": 1.0},
        execution={"groups": 4, "window": 8},
    )  # fmt: skip


@pytest.mark.parametrize("head", [npp.Lag(1), npp.Frozen(), long(npp.Exact())])
def test_adam_and_shared_layers_of_every_rule(tmp_path, head):
    check(
        tmp_path, spaces.mixed(npp.Lag(2), head), spaces.vectors, LOSS, stages=(2,), steps=8,
        optimizer="Adam", lr=0.01, recipe={"passes": "accumulate:3"}, execution={"groups": 2},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "stages", "more", "execution"),
    [
        (1, (1, 2), {}, {"recompute": True}),
        (2, (1, 2), ALL, {"memory_budget": "0.001x"}),
        long(3, (1,), {}, {}),
        (2, (2,), {"passes": "subnets:4:users"}, {"window": 16}),
    ],
)
def test_deferred_statistics_also_of_a_layer_that_lags(
    tmp_path, monkeypatch, groups, stages, more, execution
):
    restless(monkeypatch)
    stem = npp.Shared("stem", normed_stem, rule=npp.Lag(3))
    space = npp.Space("deferred", [stem, *spaces.mixed().blocks[1:]])
    (*_, run) = check(
        tmp_path, space, spaces.vectors, LOSS, stages=stages, steps=8, lr=0.02, options=MOMENTUM,
        recipe={"passes": "accumulate:4", "norms": "deferred", **more},
        execution={"groups": groups, **execution},
    )  # fmt: skip
    norm = run.shared("stem").state_dict()
    assert int(norm["1.num_batches_tracked"]) == 8 * 4 and float(norm["1.running_mean"].std()) > 0


def normed_stem():
    return nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24, momentum=0.2))


def linear(width=32):
    stem = npp.Shared("stem", lambda: nn.Linear(16, width), rule=npp.Lag(1))
    blocks = [npp.Block([lambda: nn.Linear(width, width)]) for _ in range(3)]
    head = npp.Shared("head", lambda: nn.Linear(width, 10))
    return npp.Space("linear", [stem, *blocks, head])


@pytest.mark.parametrize("groups", [long(2), 3])
def test_a_step_sends_parameters_once_up_and_once_down_for_each_further_group(tmp_path, groups):
    steps, space = 6, linear()
    run = npp.train(
        space, spaces.vectors, LOSS, steps=steps, seed=1, run_dir=tmp_path / "run",
        recipe={"passes": "accumulate:3"}, execution={"groups": groups},
    )  # fmt: skip
    modules = [block.candidates[0]() for block in space.blocks]
    nbytes = sum(4 * each.numel() for module in modules for each in module.parameters())
    stages = run.manifest["measured"]["stages"]
    header = len(modules) * (groups - 1) * 200
    for what, count in (("summed_bytes", steps), ("copied_bytes", steps - 1)):
        found = sum(stage[what] for stage in stages) - count * (groups - 1) * nbytes
        assert 0 < found <= count * header, f"{what}: sent again, or not sent at all"


@pytest.mark.parametrize("how", [long(fail), long(kill), interrupt])
def test_it_goes_on_with_other_groups(tmp_path, how):
    def train(data, groups, stages, **kw):
        return npp.train(
            spaces.mixed(), data, LOSS, steps=10, seed=1, lr=0.05, stages=stages,
            recipe={"passes": "accumulate:4", **ALL}, run_dir=tmp_path / "run",
            execution={"checkpoint_every": 2, "window": 8, "groups": groups}, **kw,
        )  # fmt: skip

    at = [13, 22, 31]  # of a pass in another group each
    with pytest.raises(npp.NaspipeError):
        train(Ends(spaces.vectors, at[0], how, tmp_path / "first"), 4, 1)
    with pytest.raises(npp.NaspipeError):
        train(Ends(spaces.vectors, at[1], how, tmp_path / "second"), 2, 2, resume=True)
    with pytest.raises(npp.NaspipeError):
        train(Ends(spaces.vectors, at[2], how, tmp_path / "third"), 1, 2, resume=True)
    run = train(Calm(spaces.vectors), 3, 1, resume=True)
    assert run.manifest["life"]["first"][0] > 0
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05,
        passes="accumulate:4", **ALL,
    )  # fmt: skip
    assert_same_bits(run, oracle)


def test_streams_side_by_side(tmp_path):
    def workload(seed):
        return npp.workload(
            spaces.mixed(), spaces.vectors, LOSS, seed=seed, steps=5,
            recipe={"passes": "accumulate:4"},
        )  # fmt: skip

    runs = npp.train_together(
        [workload(1), workload(2)], npp.Execution(groups=2, stages=2), tmp_path / "both"
    )
    for run, seed in zip(runs, (1, 2), strict=True):
        oracle = plain_loop(
            run.space, spaces.vectors, LOSS, run, seed=seed, optimizer="SGD", lr=0.05,
            passes="accumulate:4",
        )  # fmt: skip
        assert_same_bits(run, oracle)


def partial(updates, command, join=StageUpdates.join):
    """The sum joins the last of four passes: two groups add up apart."""
    layer, stream = command.layer, command.layer.stream
    state = updates._passes.get((stream, command.version + 2))
    own = state.parameter_gradients.get(layer) if state else None
    came = updates._sums[layer, command.version]
    if own:
        ((_, gradients),) = came.parts.items()
        for name in own.keys() & gradients.keys():
            own[name].add_(gradients[name])
        updates._sums[layer, command.version] = came._replace(parts={})
    join(updates, command)


def dropped(updates, layer, version, given, take=StageUpdates.take_sum):
    fewer = {part: dict([*own.items()][1:]) for part, own in given.parts.items()}
    take(updates, layer, version, given._replace(parts=fewer))


def doubled(updates, layer, version, given, take=StageUpdates.take_sum):
    twice = {
        part: {name: 2 * value for name, value in own.items()} for part, own in given.parts.items()
    }
    take(updates, layer, version, given._replace(parts=twice))


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (StageUpdates, "join", partial),
        (StageUpdates, "take_sum", dropped),
        (StageUpdates, "take_sum", doubled),
        (StoredLayer, "take_buffers", lambda layer, state: None),
    ],
    ids=["partial sums", "dropped", "doubled", "own buffers"],
)
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError, match="differ"):
        check(
            tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1,), steps=8, lr=0.02,
            options=MOMENTUM, recipe={"passes": "accumulate:4"}, execution={"groups": 2},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"recipe": {"passes": "accumulate:2"}}, "groups=3: expected a pass of every step"),
        ({}, "groups=3: expected a pass of every step for each group, found steps of 1"),
        (
            {"recipe": {"passes": "accumulate:3", "reduction": "tree"}},
            "reduction=tree: expected passes that are a power of two, found 'accumulate:3'",
        ),
        (
            {"recipe": {"passes": "subnets:3", "weight": "items"}},
            "weight=items: expected passes=accumulate:N or subnets:N:passes",
        ),
        ({"policy": "bsp"}, "groups=3: expected the policy csp or sequential, found bsp"),
        ({"policy": "asp"}, "groups=3: expected the policy csp or sequential, found asp"),
        (
            {"recipe": {"passes": "accumulate:3"}, "loss": nn.CrossEntropyLoss(reduction="sum")},
            "groups=3: expected a loss that is a mean over its batch",
        ),
        (
            {"recipe": {"passes": "accumulate:3"}, "data": lambda *which: one_item(*which)},
            "groups=3: expected passes of two items or more",
        ),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, changes, text):
    how = {"loss": LOSS, "data": spaces.vectors, **changes}
    data, loss = how.pop("data"), how.pop("loss")
    with pytest.raises(npp.ConfigError, match=text) as caught:
        npp.train(
            spaces.mixed(), data, loss, steps=2, run_dir=tmp_path / "run",
            execution={"groups": 3}, **how,
        )  # fmt: skip
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_norm_that_cannot_be_deferred(tmp_path):
    odd = npp.Block([lambda: nn.InstanceNorm1d(24, track_running_stats=True)])
    space = npp.Space("odd", [npp.Shared("stem", lambda: nn.Linear(16, 24)), odd])
    with pytest.raises(npp.ConfigError, match=r"norms=deferred: expected BatchNorm1d, 2d or 3d"):
        npp.train(
            space, spaces.vectors, LOSS, steps=2, run_dir=tmp_path / "run",
            recipe={"norms": "deferred"},
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def one_item(seed, sequence_id):
    return {name: tensor[:1] for name, tensor in spaces.vectors(seed, sequence_id).items()}


def test_batches_differ():
    """What the tests above compare would be worth little otherwise."""
    first, second = (spaces.vectors(1, y)["input"] for y in (0, 1))
    assert not torch.equal(first, second)
