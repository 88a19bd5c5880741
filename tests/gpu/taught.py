"""Cases with teachers: frozen ones, ones that follow, and blocks that learn from blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import naspipe as npp
from tests.equivalence import momentum_runs, test_blockwise, test_teachers
from tests.equivalence.harness import assert_same_bits


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A student of a frozen teacher."""

    stages: int
    mode: str = "eval"
    passes: int = 1
    execution: dict = field(default_factory=dict)

    def train(self, device, place):
        """One run."""
        passes = f"accumulate:{self.passes}" if self.passes > 1 else "one"
        return test_teachers.train(
            place / "run", self.stages, passes, {**self.execution, "device": device},
            teacher=npp.Teacher(test_teachers.network(), mode=self.mode, window=6),
        )  # fmt: skip

    def compare(self, run, device):
        """The student's bits."""
        plain = test_teachers.plain_loop(run, self.passes, self.mode, device)
        assert_same_bits(run, plain)


@dataclass(frozen=True, kw_only=True)
class Followed:
    """BYOL, or MoCo-v3's loss: a teacher that follows its student."""

    stages: int
    lag: int = 1
    is_joined: bool = False
    teacher: dict = field(default_factory=dict)
    execution: dict = field(default_factory=dict)

    def train(self, device, place):
        """One run."""
        return momentum_runs.train(
            place / "run", self.stages, lag=self.lag, teacher=dict(self.teacher),
            loss=npp.losses.Contrastive() if self.is_joined else None,
            execution={**self.execution, "device": device},
        )  # fmt: skip

    def compare(self, run, device):
        """Both networks' bits."""
        backward = momentum_runs.joined if self.is_joined else momentum_runs.by_pass
        plain = momentum_runs.plain(self.lag, backward=backward, device=device, **self.teacher)
        wrong = momentum_runs.differences(run, plain)
        assert not wrong, f"{len(wrong)} differ, among them {wrong[:5]}"


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """A teacher's blocks, each taught to a student of its own."""

    stages: int
    passes: int = 1
    execution: dict = field(default_factory=dict)

    def train(self, device, place):
        """All blocks."""
        passes = {"passes": f"accumulate:{self.passes}"} if self.passes > 1 else {}
        return test_blockwise.distill(
            place / "run", self.stages, recipe=passes, steps=6,
            execution={**self.execution, "device": device},
        )  # fmt: skip

    def compare(self, found, device):
        """Every block's bits."""
        loops = test_blockwise.plain_loops(found.blocks, steps=6, passes=self.passes, device=device)
        for run, loop in zip(found.blocks, loops, strict=True):
            assert_same_bits(run, loop)


def teachers():
    """On one stage and on several."""
    two = partial(Followed, stages=2)
    return {
        "momentum, one step old": two(),
        "frozen": Frozen(stages=2),
        "blockwise": Distilled(stages=2),
        "momentum, of the same step": Followed(stages=1, lag=0),
        "momentum, one loss": two(is_joined=True),
        "frozen, in training mode, swapped": Frozen(
            stages=2, mode="train", passes=2, execution={"memory_budget": "1x"}
        ),
        "momentum, evaluation mode, averaged": two(teacher={"mode": "eval", "buffers": "averaged"}),
        "momentum, 2 groups": Followed(stages=1, execution={"groups": 2}),
        "momentum, swapped": two(execution={"memory_budget": "1x"}),
        "blockwise, passes": Distilled(stages=2, passes=3, execution={"partition": "hybrid"}),
    }
