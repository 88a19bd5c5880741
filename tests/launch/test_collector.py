"""What the launcher makes of single reports: whom each is for, and what it raises."""

from __future__ import annotations

import signal

import pytest

from naspipe.config.errors import ConfigError, StageFailedError
from naspipe.launch.liveness import Liveness
from naspipe.launch.stopping import Stop
from naspipe.launch.supervisor import Collector, StageReports
from naspipe.store.losses import SectionLosses, read_losses
from naspipe.wire.messages import HOLD, STOP, ControlMessage


class Told:
    """Observer, publisher, growing streams: notes what it is told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *values: self.told.append((name, *values))


@pytest.fixture
def training(tmp_path):
    """A collector of a run on two stages, what it tells, what goes to the stages, the stop."""
    told, sent = Told(), []
    stop = Stop(2, lambda stage, message: sent.append((stage, message)))
    with SectionLosses([tmp_path / "losses.jsonl", tmp_path / "losses-1.jsonl"]) as losses:
        collector = Collector(2, [losses], told, told, stop, told, told.collect)
        yield collector, told.told, sent, stop


def test_a_loss_is_written_and_told(training, tmp_path):
    collector, told, _, _ = training
    for y in (1, 0):
        body = {"stream": 0, "section": 0, "sequence_id": y, "loss": 1.5, "bits": "3fc00000"}
        collector.take("loss", 1, body)
    assert told == [
        call for y in (1, 0) for call in (("on_loss", 0, y, 1.5), ("take", 0, y, 1.5), ("collect",))
    ]
    found = read_losses(tmp_path / "losses.jsonl", 2)
    assert [(loss.sequence_id, loss.bits) for loss in found] == [(0, "3fc00000"), (1, "3fc00000")]


def test_a_loss_within_the_chain_is_written_and_nobody_is_told(training, tmp_path):
    collector, told, *_ = training
    body = {"stream": 0, "section": 1, "sequence_id": 0, "loss": 1.5, "bits": "3fc00000"}
    collector.take("loss", 0, body)
    assert told == [] and len(read_losses(tmp_path / "losses-1.jsonl")) == 1


def test_the_other_reports_of_a_training_reach_whom_they_are_for(training):
    collector, told, sent, _ = training
    collector.take("busy", 1, {"busy_ns": 5, "elapsed_ns": 9, "hits": 2, "reads": 3, "pending": 4})
    collector.take("part", 0, {"cut": 4})
    busy = [("on_busy", 1, 5, 9), ("on_hits", 1, 2, 3), ("on_pending", 1, 4)]
    assert told == [*busy, ("publish_held",), ("take", 0, {"cut": 4})]
    collector.take("signal", 1, {"number": int(signal.SIGTERM)})
    assert sent == [(stage, ControlMessage(HOLD)) for stage in (0, 1)]
    collector.take("held", 0, {"admitted": [7]})
    collector.take("held", 1, {"admitted": [9]})
    assert sent[2:] == [(stage, ControlMessage(STOP, (9,))) for stage in (0, 1)]
    assert not collector.is_complete


def test_stages_that_make_other_batches(training):
    collector, told, *_ = training
    for stage, number, digest in ((0, 3, "a"), (1, 3, "a"), (0, 4, "b"), (1, 5, "b")):
        collector.take("batch", stage, {"stream": 0, "number": number, "digest": digest})
    collector.take("batch", 1, {"stream": 1, "number": 4, "digest": "c"})
    said = "the same batch 4 in every process, found another one on stage 1 than on stage 0"
    with pytest.raises(ConfigError, match=said):
        collector.take("batch", 1, {"stream": 0, "number": 4, "digest": "c"})
    assert not told


def test_a_stage_on_another_host_that_died(training):
    collector, *_ = training
    collector.liveness = Liveness([0, 1], 0.0, 60.0, 60.0)
    collector.take("beat", 1, {"doing": "0.3F@1", "age": 0.0})
    with pytest.raises(StageFailedError, match="its agent is gone") as caught:
        collector.take("died", 1, {"how": "its agent is gone"})
    assert caught.value.task == "an unknown task (last heard at: 0.3F@1)"


def test_a_stage_that_is_done_is_watched_no_more():
    reports = StageReports(1)
    reports.liveness = Liveness([0], 0.0, 1.0, 1.0)
    reports.take("beat", 0, {"doing": "x", "age": 0.0})
    reports.take("done", 0, {})
    assert reports.liveness.problem(1e9) is None and reports.is_complete


def test_a_run_in_the_launchers_own_process_reports_without_a_socket(training):
    """A signal is answered with the next report, as nobody polls."""
    collector, _, sent, stop = training
    stop.request(signal.SIGINT)
    collector.report("busy", {"busy_ns": 1, "elapsed_ns": 2, "hits": 0, "reads": 0, "pending": 0})
    assert sent == [(stage, ControlMessage(HOLD)) for stage in (0, 1)]
    collector.report("done", {"streams": []})
    assert collector.results == {0: {"streams": []}}
