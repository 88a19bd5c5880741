"""Settings of where a teacher's labels come from; none is a matter of a run's bits."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.core.settings.allowed import like
from naspipe.core.settings.declare import Flag, check, setting

PIPELINE, INLINE, SERVICE, FILE = "pipeline", "inline", "service", "file:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """Who computes what a frozen teacher says of each batch, and when."""

    source: str = setting(
        PIPELINE,
        "who computes a frozen teacher's labels: pipeline (its blocks run on the stages), inline "
        "(the stage of the loss), service (processes that may come and go) or file:PATH (they are "
        "read, as naspipe teach --to PATH wrote them).",
        like(r"pipeline|inline|service|file:.+", "pipeline, inline, service or file:PATH"),
        key="labels",
        flag=Flag("SOURCE"),
        example="inline",
    )

    def __post_init__(self) -> None:
        check(self)
