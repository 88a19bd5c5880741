"""A teacher's window: how far ahead of its student it may be."""

from __future__ import annotations

from naspipe.config.ids import AccessKind
from naspipe.engine.inputs import Taps
from scripts import teachers_simulated
from scripts.teachers_simulated import Setting, utilisation


def furthest(monkeypatch, **how):
    """Passes that a frozen teacher of cheap forwards is ahead, at most."""
    found, simulate = [], teachers_simulated.simulate

    def spied(*arguments):
        logs = simulate(*arguments)
        for log in logs:
            newest = [0, 0]
            for access in sorted(log, key=lambda each: each.end_ns):
                if access.layer.stream or access.kind is AccessKind.BACKWARD:
                    stream = access.layer.stream
                    newest[stream] = max(newest[stream], access.sequence_id)
                    found.append(newest[1] - newest[0])
        return logs

    monkeypatch.setattr(teachers_simulated, "simulate", spied)
    utilisation(Setting(stages=4, batches=6, ratio=0.5, **how))
    return max(found)


def test_a_teacher_is_no_further_ahead_than_its_window(monkeypatch):
    assert furthest(monkeypatch) == 3 * 6


def test_a_teacher_that_nothing_holds_runs_away(monkeypatch):
    monkeypatch.setattr(Taps, "_lingers", lambda *_: False)
    assert furthest(monkeypatch) > 40
