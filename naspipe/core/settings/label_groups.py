"""Settings of where a teacher's labels come from; none is a matter of a run's bits."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.core.errors import ConfigError
from naspipe.core.settings.allowed import above, at_least, between, like, one_of
from naspipe.core.settings.checks import expect
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

    teachers: int = setting(
        0,
        "with labels=service: teachers that the run starts itself.",
        at_least(0),
        flag=Flag("N"),
        example="3",
    )
    teachers_most: int = setting(
        0,
        "so many it may have when labels run out; 0 for no more than it starts with.",
        at_least(0),
        example="5",
    )
    teacher_stages: int = setting(
        1,
        "processes over which the blocks of each of the run's own teachers are cut, where one "
        "device is too small; with cuda a GPU for each.",
        at_least(1),
        example="2",
    )
    registry: str = setting(
        "",
        "where teachers that others started are found: redis://HOST[:PORT][/DB] or tcp://ADDRESS:"
        "PORT, on which the run listens. Empty for the run's own teachers alone.",
        like(r"(rediss?://.+|tcp://.+:\d+)?", "redis://HOST, tcp://ADDRESS:PORT or nothing"),
        key="teacher_registry",
        example="redis://localhost:6379",
    )
    keys: str = setting(
        "",
        "file of the public keys of teachers that others started, one on a line.",
        key="teacher_keys",
        example="teachers.keys",
    )
    inputs: str = setting(
        "numbers",
        "what a request holds: numbers (teachers have the data) or sent (what the teacher takes of "
        "the batch).",
        one_of("numbers", "sent"),
        key="teacher_inputs",
        example="sent",
    )
    ahead: int = setting(
        64,
        "labels that may be asked for and waiting together. There asking ahead stops.",
        at_least(1),
        key="labels_ahead",
        unit="labels",
        example="32",
    )
    again: int = setting(
        48,
        "asking ahead goes on when so many are left; below labels_ahead.",
        at_least(0),
        key="labels_again",
        unit="labels",
        example="8",
    )
    deadline: float = setting(
        3.0,
        "a label is asked of another teacher, too, after so many times its teacher's time.",
        above(1.0, 1000.0),
        key="label_deadline",
        example="2",
    )
    audit: int = setting(
        64,
        "one label in so many is made by two teachers and used when both agree; 0 for none.",
        at_least(0),
        key="label_audit",
        example="16",
    )
    ttl_seconds: float = setting(
        6.0,
        "a teacher that gives no sign of life for so long is gone.",
        above(0, 86_400.0),
        key="teacher_ttl",
        unit="seconds",
        example="60",
    )
    pace_seconds: float = setting(
        0.0,
        "the run's own teachers answer no sooner, for measurements.",
        between(0, 3600.0),
        key="teacher_pace",
        unit="seconds",
        example="0.05",
    )

    def __post_init__(self) -> None:
        check(self)

    def check_together(self) -> None:
        """What several of them must be together, once all are known.

        Raises:
            ConfigError: naming what does not fit.
        """
        expect(
            self.again < self.ahead, "labels_again", f"less than labels_ahead={self.ahead}",
            self.again,
        )  # fmt: skip
        has_any = bool(self.teachers or self.registry)
        if self.source == SERVICE and not has_any:
            raise ConfigError("labels=service: expected --teachers N or teacher_registry with it")
        if self.source != SERVICE and has_any:
            raise ConfigError(
                f"teachers, teacher_registry: expected labels=service with them, found "
                f"labels={self.source:.80}; set teachers=0 and teacher_registry= otherwise"
            )
        most, allowed = self.teachers_most, f"0, or {self.teachers} or more, as teachers says"
        expect(not most or most >= self.teachers, "teachers_most", allowed, most)
