"""Gaps made by hand in which WRITEs waited for the norm of all gradients of their step."""

from __future__ import annotations

from naspipe.config.ids import Access, AccessKind
from naspipe.config.steps import Steps
from naspipe.report.needs import Schedule
from naspipe.report.reductions import Reason
from naspipe.report.waits import explain_waits
from tests.report.test_waits import explained
from tests.store.fake_run import access

F, B, W = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE


def gated_run() -> list[Access]:
    """Subnet 1 is on stage 1 from 25 and reads what 0 wrote at 80, with its gradient from 40."""
    # stage 0  0F 1F ........ 0B 0W           the step's last gradient: 70
    # stage 1  .. 0F .. 0B ......... 0W 1F    its own gradient: 40
    return [
        access(0, 0, 0, F, 0),
        access(0, 1, 1, F, 10, length_ns=15),
        access(1, 0, 0, F, 10, stage=1),
        access(1, 0, 0, B, 30, stage=1),
        access(0, 0, 0, B, 60),
        access(0, 0, 0, W, 70, version=0),
        access(1, 0, 0, W, 75, version=0, stage=1, length_ns=5),
        access(1, 0, 1, F, 80, version=0, stage=1),
    ]


def test_a_write_that_the_global_norm_held_back_is_no_causal_wait() -> None:
    records = gated_run()
    on_stage_1 = [gap for gap in explained(records, steps=Steps(is_gated=True)) if gap[0] == 1]
    assert on_stage_1 == [
        (1, Reason.FILL, 0, 10),
        (1, Reason.OTHER, 20, 30),
        (1, Reason.NORM, 40, 70),
        (1, Reason.CAUSAL, 70, 75),
    ]
    held = next(w for w in explain_waits(records, 2, Schedule(16, steps=Steps(is_gated=True)))
                if w.reason is Reason.NORM)  # fmt: skip
    assert (held.cause, held.blocked) == (records[6], records[7])
    ungated = [gap for gap in explained(records) if gap[0] == 1]
    assert (1, Reason.NORM, 40, 70) not in ungated


def test_the_norm_holds_a_write_that_nobody_reads_yet() -> None:
    records = gated_run()[:-1]
    gaps = [gap for gap in explained(records, steps=Steps(is_gated=True)) if gap[0] == 1]
    assert gaps[-1] == (1, Reason.NORM, 40, 75)


def test_a_step_of_two_passes_waits_for_the_gradients_of_both() -> None:
    first = [access(1, 0, 0, B, 0, stage=1), access(1, 0, 1, B, 10, stage=1)]
    last = access(0, 0, 1, B, 40)
    records = [*first, last, access(1, 0, 1, W, 52, version=1, stage=1)]
    gaps = [gap for gap in explained(records, steps=Steps(2, is_gated=True)) if gap[0] == 1]
    assert gaps == [(1, Reason.NORM, 20, 52)]
