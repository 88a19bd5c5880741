"""Layers that follow their users over the stages: their state comes along, bit for bit."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.ids import AccessKind
from naspipe.plan.partitions import RotatedPlacement
from naspipe.store.access_log import read_run_accesses
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.equivalence import spaces
from tests.equivalence.harness import check, restless
from tests.thinned import long

MOMENTUM = {"momentum": 0.9, "weight_decay": 1e-4}


@pytest.fixture
def moving(monkeypatch):
    """Layers move from stage to stage."""
    restless(monkeypatch)


class Normed(nn.Sequential):
    """With buffers, which come along."""

    def __init__(self):
        super().__init__(nn.Linear(16, 16), nn.BatchNorm1d(16))


OPTIMIZERS = [
    long("SGD", MOMENTUM, (2, 3)), ("Adam", None, (2, 3)), ("Adafactor", None, (2,)),
    long("NAdam", None, (3,)), long("ASGD", None, (2,)), long("Rprop", None, (3,)),
    ("SGD", None, (2,)), ("RMSprop", {"momentum": 0.5, "centered": True}, (3,)),
]  # fmt: skip
"""Each has a state of its own to hand over, and that is done alike on any stages."""


@pytest.mark.usefixtures("moving")
@pytest.mark.parametrize(("optimizer", "options", "stages"), OPTIMIZERS)
def test_mirrored_layers_keep_their_bits(tmp_path, optimizer, options, stages):
    runs = check(
        tmp_path, spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), stages=stages,
        steps=24, optimizer=optimizer, options=options, lr=0.01,
    )  # fmt: skip
    stages = {}
    for access in read_run_accesses(runs[0].directory.path):
        stages.setdefault(access.layer, set()).add(access.stage)
    assert sum(len(found) > 1 for found in stages.values()) > 5, "layers did move"


SWAPPED = {"recompute": True, "memory_budget": "1.5x"}


@pytest.mark.parametrize(
    ("parts", "more"), [(4, {}), (2, SWAPPED), long(3, {}), long(4, SWAPPED), long(3, SWAPPED)]
)
def test_subnets_that_go_round_keep_their_bits(tmp_path, monkeypatch, parts, more):
    """Every layer comes to every stage, the first and the last one, too; some may have none."""
    monkeypatch.setattr(
        RotatedPlacement, "_fastest", lambda cut, subnets: min(parts, cut._num_stages)
    )
    block = npp.Block([lambda: nn.Linear(16, 16), Normed, lambda: nn.Linear(16, 16)])
    last = npp.Block([lambda: nn.Linear(16, 10), lambda: nn.Linear(16, 10)])
    space = npp.Space("round", [block, block, block, block, last])
    runs = check(
        tmp_path, space, spaces.vectors, nn.CrossEntropyLoss(), stages=(2, 4), steps=24,
        optimizer="Adam", sampler="fair", execution={"partition": "rotated", **more},
    )  # fmt: skip
    for run, stages in zip(runs, (2, 4), strict=True):
        first = [
            access.stage
            for access in read_run_accesses(run.directory.path)
            if access.layer.block == 0 and access.kind is AccessKind.FORWARD
        ]
        assert set(first) == set(range(stages))


@pytest.mark.usefixtures("moving")
def test_recompute_and_absent_gradients_on_the_move(tmp_path):
    check(
        tmp_path, spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), stages=(2, 4),
        steps=24, optimizer="Adam", lr=0.01, execution={"recompute": True},
    )  # fmt: skip


@pytest.mark.usefixtures("moving")
def test_a_push_without_the_optimizer_state_is_seen(tmp_path, monkeypatch):
    tensors = StoredLayer.tensors
    monkeypatch.setattr(
        StoredLayer, "hand_over",
        lambda layer: [pair for pair in tensors(layer) if not pair[0].startswith("optimizer")],
    )  # fmt: skip
    with pytest.raises(AssertionError, match="differ"):
        check(
            tmp_path, spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), stages=(2,),
            steps=40, optimizer="Adam", lr=0.01, execution={"order": "paper"},
        )  # fmt: skip


@pytest.mark.usefixtures("moving")
def test_a_lagging_layer_that_would_move_is_refused(tmp_path):
    block = npp.Block([lambda: nn.Linear(16, 16), lambda: nn.Linear(16, 16)])
    middle = npp.Shared("middle", lambda: nn.Linear(16, 16), rule=npp.Lag(2))
    head = npp.Shared("head", lambda: nn.Linear(16, 10))
    space = npp.Space("middle", [block, block, middle, block, block, head])
    with pytest.raises(Exception, match="stays on stage"):
        check(tmp_path, space, spaces.vectors, nn.CrossEntropyLoss(), stages=(2,), steps=30)


@pytest.mark.alone
@pytest.mark.usefixtures("moving")
@pytest.mark.parametrize("width", [24, 160], ids=["copied", "sent from its own memory"])
def test_a_layer_takes_host_memory_on_one_stage_only(tmp_path, width):
    """ZeroMQ copies small tensors at once; larger ones are sent from where the layer was."""
    block = npp.Block([lambda: nn.Linear(width, width) for _ in range(3)])
    stem = npp.Shared("stem", lambda: nn.Linear(16, width), rule=npp.Lag(3))
    head = npp.Shared("head", lambda: nn.Linear(width, 10))
    space = npp.Space("plain", [stem, *[block] * 6, head])
    (run,) = check(
        tmp_path, space, spaces.vectors, nn.CrossEntropyLoss(), stages=(2,), steps=60,
        options=MOMENTUM, execution={"memory_budget": "1.5x", "recompute": True},
    )  # fmt: skip
    inner = 2 * 4 * (width * width + width)
    outer = 2 * 4 * (17 * width + (width + 1) * 10)
    stages = run.manifest["measured"]["stages"]
    found = sum(stage["host_bytes"] for stage in stages)
    assert found <= 18 * inner + outer + 22 * 2048, "parameters, momentum, and their alignment"
    leaving = sum(stage["host_leaving_bytes"] for stage in stages)
    assert leaving <= 6 * (inner + 2048), "only the last subnets' layers may still be on their way"
