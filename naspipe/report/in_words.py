"""Describe a run in sentences: how busy its stages were, what they waited for, what would help.

The limits of a run are determined as in ``naspipe plan``, but with the costs in the run's log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count, takewhile
from typing import NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.ids import Access, AccessKind, SequenceId, StreamId, Subnet
from naspipe.config.partition import partition_along
from naspipe.config.steps import Steps
from naspipe.engine.events import Planned
from naspipe.plan.bottlenecks import Bottleneck, bottlenecks
from naspipe.plan.bounds import causal_bound
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.fidelity import logged_table
from naspipe.plan.pipeline import Pipeline, Plan, StreamPlan
from naspipe.plan.simulation import Outcome, bound_of
from naspipe.report.recorded import Recorded, section
from naspipe.report.reductions import Reason
from naspipe.store.metrics import summarize
from naspipe.streams.samplers import make_sampler

_NOTABLE = 0.02
"""Smaller fractions are not mentioned."""
_MOST_REASONS = 3
_MOST_SUBNETS = 400
"""Maximum number of subnets to analyze, from the start of a run."""
_GAIN = 1.05
"""A sampler with a smaller gain is not suggested."""

_WAITED = {
    Reason.FILL: "the pipeline filling",
    Reason.INPUT: "waiting for what another stage computes",
    Reason.CAUSAL: "waiting for earlier subnets, whose updates a layer needs",
    Reason.REDUCTION: "waiting for the gradients of another group",
    Reason.COPY: "waiting for layers that another group wrote",
    Reason.BUFFERS: "waiting for another group's running statistics",
    Reason.NORM: "waiting for the norm of all gradients of a step",
    Reason.WINDOW: "waiting for an earlier subnet to finish, as no more may be under way",
    Reason.TEACHER: "the teacher's forwards",
    Reason.LOAD: "waiting for layers to be loaded",
    Reason.OTHER: "dispatch, messages, the making of layers and a busy machine",
    Reason.DRAIN: "the end, with nothing left to do",
}


def in_words(run: Recorded, waited_ns: Mapping[str, list[int]], length_ns: int) -> list[str]:
    """Return sentences for the top of the page, the most important first.

    Args:
        run: the run whose records are shown.
        waited_ns: by reason and stage.
        length_ns: time span of the records.
    """
    whole = run.num_stages * length_ns
    if not whole or not run.has_every_step:  # omitted steps would count as idle time
        return []
    shares = {reason: sum(waited_ns[reason.value]) / whole for reason in Reason}
    busy = 1 - sum(shares.values())
    stages = f"{run.num_stages} stages were" if run.num_stages > 1 else "The stage was"
    shown = ", in the records that are shown" if run.whole else ""
    words = [f"{stages} busy {_percent(busy)} of the time{shown}."]
    most = sorted(Reason, key=lambda reason: (-shares[reason], reason.value))
    named = [reason for reason in most[:_MOST_REASONS] if shares[reason] > _NOTABLE]
    words += [f"{_percent(shares[reason])} was {_WAITED[reason]}." for reason in named]
    found = limits(run)
    if found.found:
        first = found.found[0]
        words.append(
            f"What limits it most is {first.text} "
            f"({first.busy_stages:.1f} of {run.num_stages} stages)."
        )
    if found.sampler:
        words.append(
            f"The sampler {found.sampler} would help: causal order lets {found.sampled_busy:.1f} "
            f"stages be busy with it, and {found.busy:.1f} with this one. It is another stream, so "
            f"another run."
        )
    return words


def _percent(share: float) -> str:
    return f"{max(0.0, share):.0%}".replace("%", " %")


class Limits(NamedTuple):
    """What kept stages from being busy, the strictest limit first, and what would help.

    ``sampler`` is a sampler that allows more stages to be busy, or empty. ``busy`` is the maximum
    number of busy stages that causal order allows, and ``sampled_busy`` the number with that
    sampler.
    """

    found: Sequence[Bottleneck] = ()
    sampler: str = ""
    busy: float = 0.0
    sampled_busy: float = 0.0


def limits(run: Recorded) -> Limits:
    """Return the limits in the records shown; empty for several streams, a teacher or one stage."""
    steps = run.schedule.steps
    planned, accesses = _whole_passes(run, steps)
    if not planned or run.num_stages < 2 or run.teacher:
        return Limits()
    subnets = tuple(each.subnet for each in planned)
    table = logged_table(accesses, steps)
    chain = Chain(rules=run.labels.rules, is_shared=run.labels.stays)
    definition = section(run.manifest, "definition")
    policy = str(definition.get("policy", "csp"))
    pipeline = Pipeline(
        streams=(Stream(chain, subnets, table),), policy=policy, bulk=run.num_stages, steps=steps
    )
    plan = Plan((StreamPlan(tuple(planned)),), "", run.schedule.window)
    bound = bound_of(pipeline)
    summary = run.whole or summarize(run.accesses, run.num_stages)
    outcome = Outcome(
        stages=run.num_stages,
        order="",
        window=run.schedule.window,
        passes_per_second=summary.passes_per_second,
        bubble_ratio=summary.bubble_ratio,
        bound=bound.bubble(run.num_stages),
        hit_rate=summary.hit_rate,
        stall_ratio=summary.stall_ratio,
        makespan_seconds=summary.seconds,
        uses=(),
    )
    found = bottlenecks(pipeline, run.labels.labels, bound, plan, outcome, run.num_groups)

    # The distance that ``naspipe plan`` tries, or the maximum that all blocks allow.
    window = min([2 * run.num_stages, *(number - 1 for number in run.labels.options)])
    if not window or definition.get("sampler") not in ("uniform", "fair") or steps.passes > 1:
        return Limits(found)
    drawn = make_sampler(f"spaced:{window}", run.labels.options, int(definition.get("seed", 0)))
    spaced = tuple(run.labels.subnet(number, next(drawn)) for number in range(len(subnets)))
    then = causal_bound(spaced, run.labels.rules, table, steps)
    busy, better = (min(each.steady_parallelism, run.num_stages) for each in (bound, then))
    if better <= _GAIN * busy:
        return Limits(found)
    return Limits(found, f"spaced:{window}", busy, better)


def _whole_passes(run: Recorded, steps: Steps) -> tuple[list[Planned], list[Access]]:
    """Return the first consecutive passes with all forwards, in whole steps, and their records.

    The result is empty for several streams, or if a chain returned to a stage.
    """
    stages: dict[int, dict[int, tuple[int, int]]] = {}
    for access in run.accesses:
        if access.layer.stream:
            return [], []
        if access.kind is AccessKind.FORWARD:
            block, candidate = access.layer.block, access.layer.candidate
            stages.setdefault(access.sequence_id, {})[block] = (candidate, access.stage)
    whole = sorted(number for number, row in stages.items() if len(row) == len(run.labels))
    begun = [number for number in whole if steps.begins(number)]
    row = list(takewhile(set(whole).__contains__, count(begun[0]))) if begun else []
    row = row[: min(len(row), _MOST_SUBNETS) // steps.passes * steps.passes]
    planned = []
    with suppress(ConfigError):
        for place, number in enumerate(row):
            cells = [stages[number][block] for block in range(len(run.labels))]
            subnet = Subnet(StreamId(0), SequenceId(place), tuple(choice for choice, _ in cells))
            partition = partition_along([stage for _, stage in cells], run.num_stages)
            planned.append(Planned(subnet, partition))
    if len(planned) < len(row):
        return [], []
    known = set(row)
    return planned, [each for each in run.accesses if each.sequence_id in known]
