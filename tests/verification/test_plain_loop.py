"""The plain loop that verifies runs leaves the bits of naspipe's own runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import naspipe as npp
from naspipe.config.execution import Execution
from naspipe.distill.joined import join
from naspipe.machine.determinism import deterministic_torch
from naspipe.verification import plain_layer, plain_loop
from naspipe.verification.plain_loop import PlainLoop
from naspipe.verification.records import NotVerifiable, loss_bits, tensor_digest
from scripts.compositions import runs
from scripts.compositions.cases import Case
from tests.equivalence.harness import oracle_of
from tests.verification.looped_cases import compared

CASES: dict[str, Case] = {
    "rules, tree, users and groups of parameters": {
        "family": "supernet", "recipe.passes": "subnets:4", "recipe.reduction": "tree",
        "parameter_groups": "several", "optimizer_options": "momentum", "space.blocks": 2,
        "space.stem_rule": "lag(0..3,over=4,momentum=0.5,predict)", "space.palette": "gradients",
        "space.head_rule": "every(2,lr=0.5)", "recipe.ema": 0.9, "recipe.clip_global_norm": 0.05,
        "steps": 7,
    },
    "deferred norms that lag, bf16, draws and micro-batches by items": {
        "family": "supernet", "recipe.passes": "accumulate:3", "recipe.weight": "items",
        "recipe.norms": "deferred", "space.stem": "batchnorm", "space.stem_rule": "lag(2)",
        "recipe.precision": "bf16", "space.palette": "draws", "space.blocks": 2,
        "rows": "varying", "loss": "drawing", "recipe.optimizer": "AdamW",
    },
    "ordered norms, buffers, two streams and losses that are not finite": {
        "family": "supernet", "space.palette": "state", "space.stem": "batchnorm", "streams": 2,
        "infinite": "once", "recipe.nonfinite": "skip", "recipe.schedule": "cosine",
        "recipe.warmup_steps": 2, "recipe.clip_layer_norm": 0.05,
        "recipe.optimizer": "RMSprop", "loss": "weighted",
    },
    "elastic layers stepped by slices, and a sandwich": {
        "family": "supernet", "recipe.passes": "sandwich:1", "space.elastic": "slice",
        "space.elastic_rule": "lag(1,momentum=0.5,predict)", "recipe.ema": 0.9,
        "recipe.optimizer": "Adam", "space.middle": "scaled", "recipe.label_smoothing": 0.1,
    },
    "fair rounds of pairs of tensors": {
        "family": "supernet", "recipe.passes": "fair", "sampler": "fair", "space.pairs": True,
        "space.palette": "gradients", "recipe.schedule": "linear", "recipe.restart_steps": 3,
    },
    "a teacher in training mode": {
        "family": "teacher", "teacher.mode": "train", "recipe.passes": "subnets:2:users",
        "teacher.loss": "own", "space.palette": "norms",
    },
    "the greatest scores of a teacher": {"family": "teacher", "teacher.top": 3},
    "a momentum teacher with local views": {
        "family": "momentum", "views": 2, "views.local": 1, "recipe.passes": "accumulate:3",
        "recipe.norms": "deferred", "space.stem": "batchnorm", "momentum.end": 1.0,
        "space.palette": "norms", "momentum.lag": 2,
    },
    "a joint loss and a momentum teacher in evaluation mode": {
        "family": "momentum", "momentum.loss": "joint", "recipe.passes": "accumulate:2",
        "views": 2, "momentum.mode": "eval", "momentum.buffers": "averaged",
        "recipe.norms": "deferred", "space.stem": "batchnorm",
    },
    "blockwise distillation of modules": {"family": "blockwise", "blockwise.students": "modules"},
    "blockwise distillation of supernets": {
        "family": "blockwise", "blockwise.students": "wide", "blockwise.loss": "own",
        "recipe.optimizer": "NAdam", "blockwise.blocks": 3,
    },
    "mixed edges in blocks, with costs": {
        "family": "mixed", "mixed.as": "blocks", "mixed.costs": True, "mixed.gates": "pair",
        "steps": 7,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def _imported() -> None:
    """Forked processes then find everything that they need."""
    runs.warm_up()


@pytest.mark.usefixtures("_imported")
@pytest.mark.parametrize("name", CASES)
def test_the_loop_leaves_the_bits_of_a_run(name: str) -> None:
    outcome = compared(CASES[name])
    assert outcome.kind == runs.EQUAL, outcome.detail


@pytest.mark.usefixtures("_imported")
def test_a_loop_with_one_step_more_of_lag_differs() -> None:
    def read_later() -> None:
        plain_layer.lag_of = lambda rule, step: rule.subnets + 1

    case: Case = {"family": "supernet", "space.stem_rule": "lag(2)"}
    assert compared(case).kind == runs.EQUAL
    assert compared(case, read_later).kind == runs.DIFFERS


class Data:
    """Four rows a batch."""

    def __call__(self, seed: int, number: int) -> dict[str, torch.Tensor]:
        draws = torch.Generator().manual_seed(100 * seed + number)
        x = torch.randn(4, 4, generator=draws)
        return {"input": x, "target": (x.sum(1) > 0).long()}


def workload(space: npp.Space, **how: object) -> object:
    return npp.workload(space, Data(), nn.CrossEntropyLoss(), **{"steps": 3, **how})


@pytest.fixture
def plain_torch() -> Iterator[None]:
    """Leaves the settings of torch as they were."""
    with deterministic_torch(1):
        yield


def test_the_loop_trains_the_users_own_modules(plain_torch: None) -> None:
    network = [nn.Linear(4, 4), nn.Linear(4, 2)]
    before, seen = copy.deepcopy(network), []
    network[0].register_forward_hook(lambda *_: seen.append(network[0].weight.clone()))
    loop = PlainLoop([workload(npp.chain(network))], [], [[(0, 0)] * 3])
    record = loop.step()
    assert len(seen) == 1
    assert not torch.equal(network[0].weight, before[0].weight)
    digest = tensor_digest(network[0].weight)
    assert record.streams[0].layers["0.0"]["param/weight"] == digest
    assert len(record.streams[0].losses) == 1


def test_initial_weights_are_put_into_the_users_own_modules(plain_torch: None) -> None:
    network, begins = nn.Sequential(nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 2))
    PlainLoop([workload(npp.chain(network), init_from=begins)], [], [[(0,)]])
    assert torch.equal(network[0].weight, begins[0].weight)


def test_a_module_that_two_streams_train_is_copied_for_one_of_them(plain_torch: None) -> None:
    network = [nn.Linear(4, 2)]
    pair = [workload(npp.chain(network)), workload(npp.chain(network), seed=1)]
    before = copy.deepcopy(network[0].weight)
    loop = PlainLoop(pair, [], [[(0,)] * 3] * 2)
    first, second = (layers.layers[0, 0].module for layers in loop._streams)
    assert first is network[0]
    assert second is not network[0]
    assert torch.equal(second.weight, before)


def test_a_teacher_that_is_the_student_keeps_its_weights(plain_torch: None) -> None:
    network = [nn.Linear(4, 2)]
    before = copy.deepcopy(network[0].weight)
    loss = npp.losses.SoftTarget(temperature=2.0, weight=0.5)  # moves where both agree, too
    student = npp.workload(npp.chain(network), Data(), loss, steps=3)
    taught = join([student], Execution(), teacher=npp.Teacher(network))
    loop = PlainLoop(taught.workloads, taught.taps, [[(0,)] * 3] * 2)
    for _ in range(3):
        loop.step()
    assert not torch.equal(network[0].weight, before)
    assert torch.equal(loop._streams[1].layers[0, 0].module.weight, before)


class Checkpointed(nn.Module):
    """Computes its layers again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layers, x, use_reentrant=False)


def test_activation_checkpointing_sees_the_version_that_the_step_reads(plain_torch: None) -> None:
    stem = npp.Shared("stem", Checkpointed, rule="lag(1)")
    space = npp.Space("late", [stem, npp.Shared("head", lambda: nn.Linear(4, 2))])
    loop = PlainLoop([workload(space, steps=5)], [], [[()] * 5])
    copying = oracle_of(space, 0, "SGD", lambda step: 0.05, {})
    for step in range(5):
        (found,) = loop.step().streams[0].losses
        copying.step(step, (0, 0), Data()(0, step), nn.CrossEntropyLoss())
        assert found == loss_bits(copying.losses[-1])


def test_what_is_not_covered_is_said() -> None:
    with pytest.raises(NotVerifiable, match=r"^because policy=asp leaves results that depend on"):
        PlainLoop([workload(npp.chain([nn.Linear(4, 2)]), policy="asp")], [], [[]])


def test_bits_and_digests_tell_zeros_dtypes_and_shapes_apart() -> None:
    assert loss_bits(torch.tensor(1.0)) == "3f800000"
    assert loss_bits(torch.tensor(-0.0)) == "80000000"
    values = [torch.zeros(2), -torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).int(), 0, 0.0]
    assert len(set(map(tensor_digest, values))) == len(values)
    assert tensor_digest(torch.ones(3, 2).T) == tensor_digest(torch.ones(2, 3))


def test_generators_are_seeded_by_a_text() -> None:
    plain_loop.start_draws("0/layer/0/0")
    first = torch.rand(1)
    plain_loop.start_draws("0/layer/0/0")
    assert torch.equal(first, torch.rand(1))
