"""A teacher's forwards are shown where the student's log alone has waits."""

from __future__ import annotations

from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.report.reductions import Reason
from naspipe.report.teachers import with_teacher
from naspipe.report.waits import Wait


def record(stage, start, end):
    return Access(LayerId(0, 0, 0), 0, AccessKind.FORWARD, -1, stage, start, end, 0)


def test_waits_are_cut_where_the_teacher_ran():
    waits = [Wait(0, 10, 50, Reason.INPUT), Wait(1, 0, 30, Reason.FILL)]
    teacher = [record(0, 0, 15), record(0, 20, 30), record(0, 45, 70), record(1, 40, 50)]
    found = [(w.stage, w.start_ns, w.end_ns, w.reason) for w in with_teacher(waits, teacher)]
    assert found == [
        (0, 10, 15, Reason.TEACHER), (0, 15, 20, Reason.INPUT), (0, 20, 30, Reason.TEACHER),
        (0, 30, 45, Reason.INPUT), (0, 45, 50, Reason.TEACHER), (1, 0, 30, Reason.FILL),
    ]  # fmt: skip
    assert with_teacher(waits, []) == waits
    whole = with_teacher(waits, [record(0, 0, 99)])
    assert [each.reason for each in whole] == [Reason.TEACHER, Reason.FILL]
