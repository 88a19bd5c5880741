"""A run's figures as sentences: how busy its stages were, what they waited for, what would help."""

from __future__ import annotations

from collections.abc import Mapping

from naspipe.report.limits import limits
from naspipe.report.reasons import Reason
from naspipe.report.recorded import Recorded

_NOTABLE = 0.02
"""Shares below this are not worth a sentence."""
_MOST_REASONS = 3

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
    """Sentences for the top of the page, the most important first.

    Args:
        run: whose records are shown.
        waited_ns: of each reason, by stage.
        length_ns: of the records that are shown.
    """
    whole = run.num_stages * length_ns
    if not whole:
        return []
    shares = {reason: sum(waited_ns[reason.value]) / whole for reason in Reason}
    busy = 1 - sum(shares.values())
    stages = f"{run.num_stages} stages were" if run.num_stages > 1 else "The stage was"
    shown = ", in the records that are shown" if run.whole else ""
    words = [f"{stages} busy {_percent(busy)} of the time{shown}."]
    most = sorted(Reason, key=lambda reason: (-shares[reason], reason.value))
    named = [reason for reason in most[:_MOST_REASONS] if shares[reason] > _NOTABLE]
    words += [f"{_percent(shares[reason])} was {_WAITED[reason]}." for reason in named]
    return [*words, *_limits(run)]


def _limits(run: Recorded) -> list[str]:
    """What limited the run most, as ``naspipe plan`` says it, and a sampler that would help."""
    found = limits(run)
    words = [
        f"What limits it most is {first.text} ({first.busy_stages:.1f} of {run.num_stages} stages)."
        for first in found.found[:1]
    ]
    if found.sampler:
        words.append(
            f"The sampler {found.sampler} would help: causal order lets {found.sampled_busy:.1f} "
            f"stages be busy with it, and {found.busy:.1f} with this one. It is another stream, so "
            f"another run."
        )
    return words


def _percent(share: float) -> str:
    return f"{max(0.0, share):.0%}".replace("%", " %")
