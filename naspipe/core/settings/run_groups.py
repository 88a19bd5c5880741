"""Settings of how a run is watched, kept, judged and recorded; none is a matter of a run's bits."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.core.settings.allowed import above, at_least, between, like, one_of
from naspipe.core.settings.declare import Flag, check, setting

MAX_TIMEOUT_SECONDS = 86_400.0
"""A day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """When a stage is given up, and what is done then."""

    timeout_seconds: float = setting(
        300.0,
        "how long a stage may be at one block, or wait for a message, before it is given up.",
        above(0, MAX_TIMEOUT_SECONDS),
        unit="seconds",
        example="0.5",
    )
    silence_seconds: float = setting(
        30.0,
        "how long a stage's process may give no sign of life before it is given up.",
        above(0, MAX_TIMEOUT_SECONDS),
        unit="seconds",
        example="7",
    )
    max_restarts: int = setting(
        0,
        "how often a run whose stage failed goes on by itself from its last checkpoint.",
        at_least(0),
        flag=Flag("N"),
        example="1",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What a run can be resumed from."""

    every_steps: int = setting(
        0,
        "optimizer steps of a stream from one checkpoint to the next; 0 for none on the way.",
        at_least(0),
        key="checkpoint_every",
        unit="steps",
        flag=Flag("STEPS"),
        example="50",
    )
    keep: int = setting(
        2,
        "how many checkpoints are kept, the newest.",
        at_least(1),
        key="keep_checkpoints",
        example="3",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """How the supernet is judged on the way. Papers name these, so recipe files may, too."""

    every_steps: int = setting(
        0,
        "judge a few subnets on held-out data every so many optimizer steps, behind a checkpoint; "
        "0 for never. Changes no bit of the training.",
        at_least(0),
        key="validate_every",
        unit="steps",
        flag=Flag("STEPS"),
        example="100",
    )
    subnets: str = setting(
        "4",
        "so many, drawn from the seed, or file:PATH with one JSON list of choices a line.",
        like(r"[1-9][0-9]{0,5}|file:.+", "a number of subnets, as in 4, or file:PATH"),
        key="validate_subnets",
        flag=Flag("K|file:PATH"),
        example="8",
    )
    batches: int = setting(
        8,
        "held-out batches that each is judged on, or all where there are fewer; 0 for all.",
        at_least(0),
        key="validate_batches",
        unit="batches",
        example="2",
    )
    calibration_batches: int = setting(
        4,
        "training batches that running statistics are taken from; 0 for the run's own.",
        at_least(0),
        key="validate_calibrate",
        unit="batches",
        example="0",
    )
    ema: bool = setting(
        False,
        "judge by the moving averages of the weights.",
        key="validate_ema",
        example="true",
    )
    probe: str = setting(
        "none",
        "judge features in place of the loss: none, knn (the vote of the 20 nearest) or ridge (a "
        "linear probe in closed form). For networks that learn without labels.",
        one_of("none", "knn", "ridge"),
        key="validate_probe",
        example="knn",
    )
    features: str = setting(
        "",
        "label of the block whose output the features are; by default that before the block called "
        "projector, or else before the last. Pixels and tokens are averaged.",
        key="validate_features",
        example="stem",
    )
    probe_batches: int = setting(
        32,
        "training batches, as they are and not as views, that a probe learns from.",
        at_least(1),
        key="validate_probe_batches",
        unit="batches",
        example="8",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """How a run is compared with its plain loop."""

    verify: str = setting(
        "auto",
        "compare the first steps with a plain loop that runs your own modules, data and loss in a "
        "process alongside the run, and stop the run if one bit differs: auto, a number of steps, "
        "all, or 0 for none. auto takes 3 steps more than the longest lag, but at most a sixteenth "
        "of the run and at least 4 steps, and gives up if they take long; the other values wait "
        "for the plain loop. A search compares the scores of its first and its best subnet "
        "instead, unless this is 0.",
        like(r"auto|all|[0-9]{1,6}", "auto, all or a number of steps"),
        flag=Flag("auto|all|STEPS"),
        example="0",
    )

    def __post_init__(self) -> None:
        check(self)

    def steps(self, lag: int, steps: int) -> int:
        """How many steps are compared.

        Args:
            lag: the longest one of any layer, in steps.
            steps: that the run still has to train.
        """
        if self.verify == "all":
            return steps
        if self.verify == "auto":
            return min(max(4, min(lag + 3, steps // 16)), steps)
        return min(int(self.verify), steps)

    @property
    def waits(self) -> bool:
        """Whether the run waits for the plain loop, however long it takes."""
        return self.verify != "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """What is recorded beside what every run records."""

    access_log: str = setting(
        "full",
        "which accesses are recorded: full, sampled:N (those of every N-th step) or off. Without "
        "all of them, a finished run's order is not checked, and its bubble ratio not known.",
        like(r"full|off|sampled:[1-9][0-9]{0,6}", "full, sampled:N or off"),
        example="sampled:100",
    )
    digests: bool = setting(
        False,
        "record a digest of the bytes that every WRITE leaves.",
        flag=Flag(),
        example="true",
    )
    tensorboard: bool = setting(
        False,
        "write RUN/tensorboard/, beside RUN/metrics.jsonl (needs the extra tensorboard).",
        flag=Flag(),
        example="true",
    )
    events: bool = setting(
        False,
        "record every controller's input, so that it can be replayed.",
        key="record_events",
        example="true",
    )
    metrics_port: int = setting(
        0,
        "answer Prometheus at http://ADDRESS:PORT/metrics while the run goes on (needs the extra "
        "prometheus); 0 for never.",
        between(0, 65000),
        example="9400",
    )
    metrics_address: str = setting(
        "127.0.0.1",
        "where it is answered: an IPv4 address of the launcher's host. Nobody has to log in.",
        like(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", "an IPv4 address, as in 10.0.0.7"),
        example="0.0.0.0",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def logged_steps(self) -> int:
        """Accesses of each so manyth step are recorded; 0 for those of none."""
        if self.access_log in ("full", "off"):
            return int(self.access_log == "full")
        return int(self.access_log.removeprefix("sampled:"))
