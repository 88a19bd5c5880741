"""A run's definition and metrics as short texts and numbers, and whether two runs agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from naspipe.config.ids import Access, AccessKind, StreamId
from naspipe.report.needs import Needs, Schedule
from naspipe.report.recorded import Recorded, section
from naspipe.store.access_log import RunLog, time_key
from naspipe.store.access_order import recorded_spans, shared_spans, unrecorded_steps
from naspipe.store.differences import log_differences, loss_differences
from naspipe.store.metrics import bubble_ratio, causal_bound, summarize


class Filled(NamedTuple):
    """Nanoseconds that all stages spent on weight gradients deferred by split backwards (W).

    ``filled_ns`` is the part during which no forward or backward of the stage was ready or waited
    for its WRITEs; it excludes W after the last forward or backward of all stages.
    """

    owed_ns: int
    filled_ns: int


def filled_time(accesses: Sequence[Access], schedule: Schedule) -> Filled:
    """Sum up the W of a log in any order; dependencies that the log lacks count as ready."""
    if not any(access.owed_ns for access in accesses):
        return Filled(0, 0)
    needs = Needs(accesses, schedule)
    last_ns = max((a.end_ns for a in accesses if a.kind is not AccessKind.WRITE), default=0)
    owed_ns = filled_ns = 0
    ready_ns: dict[int, int] = {}
    for access in sorted(accesses, key=time_key, reverse=True):
        stage, next_ns = access.stage, ready_ns.get(access.stage, last_ns)
        if access.kind is AccessKind.WRITE:
            owed_ns += access.owed_ns
            filled_ns += max(0, min(access.owed_ns, next_ns - access.start_ns))
            continue
        # The access was ready once everything it needed had ended, except its own stage's WRITEs.
        version = needs.version(access)
        needed = [
            needs.before(access) or needs.turn(access),
            version if version is not None and version.stage != stage else None,
            needs.admission(access),
            needs.passed(access),
            needs.taught(access),
            needs.probed(access),
        ]
        ends = (each.end_ns for each in needed if each is not None)
        ready_ns[stage] = min(next_ns, max(ends, default=-(1 << 63)))
    return Filled(owed_ns, filled_ns)


_DEFINITION = ("space", "scale", "sampler", "policy", "steps", "seed")
_EXECUTION = (
    "stages",
    "groups",
    "order",
    "partition",
    "window",
    "recompute",
    "device",
    "memory_budget",
    "prefetch",
)
_RECIPE = ("optimizer", "lr", "schedule", "precision", "passes")


def facts(run: Recorded) -> dict[str, str]:
    """Return the run's definition and execution, as far as they are in its manifest."""
    definition, execution = section(run.manifest, "definition"), section(run.manifest, "execution")
    environment = section(run.manifest, "environment")
    found = {
        **_texts(definition, _DEFINITION),
        **_texts(section(definition, "data"), ("name",), "data "),
        **_texts(section(definition, "recipe"), _RECIPE),
        **_texts(execution, _EXECUTION),
        **_texts(section(environment, "hardware"), ("processor",)),
        **_texts(section(environment, "software"), ("torch",)),
    }
    rules = section(definition, "rules")
    if rules:
        found["shared layers"] = ", ".join(f"{name} {rule}" for name, rule in rules.items())
    return found


def numbers(run: Recorded) -> dict[str, float]:
    """Return the metrics of a run.

    These are the metrics of :mod:`naspipe.store.metrics` if every step was recorded; the fractions
    of all stages' time that W took and that would have been idle without W (see
    :func:`filled_time`); the mean of the last tenth of the losses; and the scores of the last
    validation.
    """
    measured: dict[str, float] = {}
    if run.whole and run.has_every_step:
        measured = dict(run.whole._asdict())
    elif run.accesses and run.has_every_step:
        measured = dict(summarize(run.accesses, run.num_stages)._asdict())
        measured["causal_bound"] = causal_bound(run.accesses, run.num_stages)
    filled = filled_time(run.accesses, run.schedule)
    if filled.owed_ns:
        first_ns = min(access.start_ns for access in run.accesses)
        whole_ns = max(access.end_ns for access in run.accesses) - first_ns
        measured["owed_ratio"] = filled.owed_ns / (whole_ns * run.num_stages)
        measured["filled_ratio"] = filled.filled_ns / (whole_ns * run.num_stages)
    if run.teacher and run.has_every_step:
        alone = [
            each._replace(layer=each.layer._replace(stream=StreamId(1))) for each in run.teacher
        ]
        both = sorted([*run.accesses, *alone], key=time_key)
        measured["bubble_with_teacher"] = bubble_ratio(both, run.num_stages)
    if run.losses:
        last = [loss.value for loss in run.losses[-max(1, len(run.losses) // 10) :]]
        measured["final_loss"] = sum(last) / len(last)
    if run.validations:
        scores = run.validations[-1].scores.items()
        measured |= {f"validation_{name}": score for name, score in scores}
    return measured


def agreement(reference: Recorded, run: Recorded) -> str:
    """Return a line about whether two runs have bitwise equal losses and equal access orders.

    ``naspipe compare`` also compares the parameters.
    """
    one, other = (section(each.manifest, "definition") for each in (reference, run))
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    if names:
        return f"not the same definition: {', '.join(names)}"
    if first := next(iter(loss_differences(reference.losses, run.losses, run.labels)), None):
        return f"differs: {first}"
    logs = RunLog(reference.path), RunLog(run.path)
    if any(log.is_empty for log in logs):
        return "same losses"
    spans = tuple(shared_spans(*(recorded_spans(each.manifest) for each in (reference, run))))
    passes = run.schedule.steps.passes
    found = log_differences(*logs, run.labels, passes, spans)
    ordered = sorted(found, key=lambda difference: difference.key)
    if ordered:
        return f"differs: {ordered[0]}"
    if unrecorded := unrecorded_steps(spans, passes):
        return f"same losses; {unrecorded}"
    return "same losses, same access order"


def _texts(part: Mapping[str, Any], names: Sequence[str], prefix: str = "") -> dict[str, str]:
    return {
        f"{prefix}{name}".replace("_", " "): _text(part[name])
        for name in names
        if part.get(name) not in (None, "")
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value!s:.200}"
