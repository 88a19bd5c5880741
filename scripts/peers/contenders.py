"""What trains the same work here, and how each result stands to the plain loop's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from scripts.peers import one_shot, ours, two_ranks
from scripts.peers.work import Work

SPACES = ("nlp.c3", "cv.c3")


class Peer(NamedTuple):
    """One competitor."""

    run: Callable[[Work], dict[str, Any]]
    samplers: tuple[str, ...]
    result: str
    """How its result stands to that of the one-at-a-time loop."""
    spaces: tuple[str, ...] = SPACES


_ALL, _FIXED = ("uniform", "spaced:8"), ("fixed",)
_SAME = "the same bits"
NETWORKS, _PASSES = ("vgg16", "resnet50"), 4
"""Plain networks train steps of several passes; their pipelines take each pass as a micro-batch."""


def _accumulated(work: Work) -> Work:
    return replace(work, passes=_PASSES)


def _torch_pipeline(work: Work, schedule: str) -> dict[str, Any]:
    return two_ranks.run_ranks("pipeline", work, cut=_cut(work), schedule=schedule)


PEERS = {
    "plain loop, 1 thread": Peer(lambda w: ours.plain(w, 1), (*_ALL, *_FIXED), "defines the bits"),
    "plain loop, 2 threads": Peer(
        lambda w: ours.plain(w, 2), _ALL, "sums in two threads add up in another order"
    ),
    "naspipe, 1 stage": Peer(lambda w: ours.piped(w, 1), _ALL, _SAME),
    "naspipe, 2 stages": Peer(lambda w: ours.piped(w, 2), (*_ALL, *_FIXED), _SAME),
    "naspipe, 2 stages, split": Peer(
        lambda w: ours.piped(w, 2, backward="split"), _ALL, _SAME
    ),
    "naspipe bsp, 2 stages, bulk 4": Peer(
        lambda w: ours.piped(w, 2, policy="bsp", bulk=4), _FIXED,
        "four subnets read the weights from before them",
    ),
    "DDP, 2 processes": Peer(
        lambda w: two_ranks.run_ranks("ddp", w), _ALL,
        "two subnets read the same weights, and their gradients are averaged into one step: half "
        "the steps, and halved gradients where only one of them uses a layer; shared layers "
        "without lag",
    ),
    "naspipe, 2 groups, subnets:2": Peer(
        lambda w: ours.piped(replace(w, passes=2), 1, 2), _ALL,
        "the bits of its own plain loop: two subnets a step, averaged as DDP does",
    ),
    "NNI RandomOneShot": Peer(
        one_shot.random_one_shot, ("uniform",),
        "draws subnets of its own, which cannot be seeded; shared layers without lag",
    ),
    "torch ScheduleGPipe, 2 stages": Peer(
        lambda w: _torch_pipeline(w, "ScheduleGPipe"), _FIXED,
        "one subnet in 4 micro-batches: their gradients are added in another order, and batch "
        "normalisation sees a quarter of the batch",
        ("cv.c3",),
    ),
    "plain loop, accumulating": Peer(
        lambda w: ours.plain(_accumulated(w), 1), _FIXED, "defines the bits", NETWORKS
    ),
    "plain loop, accumulating, 2 threads": Peer(
        lambda w: ours.plain(_accumulated(w), 2), _FIXED,
        "sums in two threads add up in another order", NETWORKS,
    ),
    "naspipe, accumulating": Peer(
        lambda w: ours.piped(_accumulated(w), 1), _FIXED, _SAME, NETWORKS
    ),
    "naspipe, accumulating, 2 stages": Peer(
        lambda w: ours.piped(_accumulated(w), 2), _FIXED, _SAME, NETWORKS
    ),
    "naspipe, accumulating, 2 groups": Peer(
        lambda w: ours.piped(_accumulated(w), 1, 2), _FIXED,
        "the same bits; with batch normalisation those of deferred statistics", NETWORKS,
    ),
    "DDP, accumulating": Peer(
        lambda w: two_ranks.run_ranks("ddp", _accumulated(w)), _FIXED,
        "two partial sums, added by an all-reduce", NETWORKS,
    ),
    "torch ScheduleGPipe, accumulating": Peer(
        lambda w: _torch_pipeline(_accumulated(w), "ScheduleGPipe"), _FIXED,
        "the same passes as micro-batches; added in another order", NETWORKS,
    ),
    "torch Schedule1F1B, accumulating": Peer(
        lambda w: _torch_pipeline(_accumulated(w), "Schedule1F1B"), _FIXED,
        "the same passes as micro-batches; added in another order", NETWORKS,
    ),
}  # fmt: skip


def _cut(work: Work) -> int:
    """Where ScheduleGPipe's stages part: naspipe's balanced partition of the same subnet."""
    from naspipe.api.planning import measured_costs
    from naspipe.config.execution import Execution
    from naspipe.plan.partitions import balanced_partition

    named = work.named()
    chain = named.space.chain(work.stream(named)[0])
    (costs,) = measured_costs([_workload(named)], Execution(stages=2))
    weights = [float(costs.of(block, candidate).total_ns) for block, candidate in enumerate(chain)]
    return balanced_partition(weights, 2).bounds[1]


def _workload(named: Any) -> Any:
    import naspipe

    recipe = named.recipe
    return naspipe.workload(
        named.space, named.data, named.loss, steps=1, optimizer=recipe.optimizer, lr=recipe.lr,
        optimizer_options=recipe.optimizer_options,
    )  # fmt: skip
