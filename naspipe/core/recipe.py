"""How every step is taken: the part of a run's definition that a recipe file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from naspipe.core.checks import expect, is_finite
from naspipe.core.steps import Steps, parse_passes

SCHEDULES = ("constant", "linear", "cosine", "inverse_sqrt")
PRECISIONS = ("float32", "bf16")
NONFINITE = ("stop", "skip", "keep")
MAX_THREADS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How every step is taken. Part of a run's definition."""

    optimizer: str = "SGD"
    """Name of a ``torch.optim`` class that works per layer."""
    lr: float = 0.05
    """Peak learning rate."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the optimizer; ``--set optimizer.momentum=0.9``."""
    schedule: str = "constant"
    """How the rate follows the sequence ID: constant, linear, cosine or inverse_sqrt."""
    warmup_steps: int = 0
    """Subnets over which the rate rises linearly from 0 to its peak."""
    precision: str = "float32"
    """float32, or bf16 for autocast with float32 weights."""
    feedback_delay: int = 15
    """Of a stream that a strategy proposes: subnets from a score to the first proposal that knows
    of it. At most one more are under way."""
    nonfinite: str = "stop"
    """What a loss that is infinite or not a number does: stop the run, skip (the step leaves
    parameters and optimizer as they are; its loss is recorded) or keep (train on, as the plain
    loop would)."""
    threads: int = 1
    """Intra-op threads of every stage; part of the definition because sums depend on it."""
    label_smoothing: float = 0.0
    """How much of each target goes to all classes alike; for losses that take it."""
    clip_layer_norm: float = 0.0
    """The greatest norm of each layer's gradient, clipped before its optimizer step; 0 for none."""
    clip_global_norm: float = 0.0
    """The greatest norm of all gradients of a step together, on whatever stages; 0 for none."""
    passes: str = "one"
    """What a step is made of: one subnet on one batch; accumulate:N, N batches one after the other
    on one subnet; or sandwich:R, the largest subnet, the smallest and R random ones on one batch,
    the others learning the largest one's output."""
    ema: float = 0.0
    """Decay of the moving average of each parameter, taken after each of its own steps; 0 for
    none. Layers that a step does not use keep their averages."""

    @property
    def steps(self) -> Steps:
        """How the passes of its streams form steps."""
        return replace(parse_passes(self.passes), is_gated=self.clip_global_norm > 0)

    def __post_init__(self) -> None:
        expect(self.lr >= 0, "lr", "0 or more", self.lr)
        expect(is_finite(self.lr), "lr", "a finite number", self.lr)
        for option, value in self.optimizer_options.items():
            expect(is_finite(value), f"optimizer.{option}", "finite numbers", value)
        expect(self.feedback_delay >= 0, "feedback_delay", "0 or more", self.feedback_delay)
        expect(self.schedule in SCHEDULES, "schedule", " or ".join(SCHEDULES), self.schedule)
        expect(self.warmup_steps >= 0, "warmup_steps", "0 or more", self.warmup_steps)
        expect(self.precision in PRECISIONS, "precision", "float32 or bf16", self.precision)
        expect(self.nonfinite in NONFINITE, "nonfinite", " or ".join(NONFINITE), self.nonfinite)
        allowed = f"1 to {MAX_THREADS}"
        expect(1 <= self.threads <= MAX_THREADS, "threads", allowed, self.threads)
        is_share = 0 <= self.label_smoothing < 1
        expect(is_share, "label_smoothing", "a share from 0 to below 1", self.label_smoothing)
        for name in ("clip_layer_norm", "clip_global_norm"):
            norm = getattr(self, name)
            expect(is_finite(norm) and norm >= 0, name, "a finite norm, or 0 for none", norm)
        parse_passes(self.passes)
        expect(0 <= self.ema < 1, "ema", "a decay from 0 to below 1", self.ema)
