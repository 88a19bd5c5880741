"""What an earlier naspipe wrote is read, compared, reported and simulated as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.core.access import Access, AccessKind
from naspipe.core.errors import LogError
from naspipe.core.events import BlockFinished, InputArrived, WriteFinished
from naspipe.core.ids import LayerId
from naspipe.core.task import parse_task
from naspipe.trace.access.event_log import EventLogWriter, read_events
from naspipe.trace.access.log import AccessLogWriter, read_access_log, read_run_accesses
from naspipe.trace.reading.compare import compare_runs
from tests.trace.fake_run import CHAINS, FakeRun, access, sequential_accesses
from tests.trace.old_format import ACCESS_MAGIC, EVENT_MAGIC, make_old, write_old

RECORD = [0, 5, 0, "F", 3, 1, 2, 1, 0, 10, 20, 4, "ab"]
BACKWARD, FORWARD = ["Task", 0, 1, 0, ["TaskKind", "B"], 1], ["Task", 0, 2, 0, ["TaskKind", "F"], 1]


def test_a_record_by_hand(tmp_path: Path) -> None:
    write_old(tmp_path / "log", ACCESS_MAGIC, 2, [RECORD])
    expected = Access(LayerId(0, 3, 1), 5, AccessKind.FORWARD, 2, 1, 10, 20, 4, "ab")
    assert read_access_log(tmp_path / "log") == [expected]


@pytest.mark.parametrize(
    ("version", "record"),
    [
        (2, [*RECORD[:2], 1, *RECORD[3:]]),
        (2, [*RECORD[:2], False, *RECORD[3:]]),
        (2, [*RECORD[:2], *RECORD[3:]]),
        (3, RECORD),
    ],
)
def test_a_record_of_neither_version_is_refused(
    tmp_path: Path, version: int, record: list[object]
) -> None:
    write_old(tmp_path / "log", ACCESS_MAGIC, version, [record])
    with pytest.raises(LogError, match="record 0: expected an access"):
        read_access_log(tmp_path / "log")


@pytest.mark.parametrize("version", [1, 5])
def test_other_versions_are_refused(tmp_path: Path, version: int) -> None:
    write_old(tmp_path / "log", ACCESS_MAGIC, version, [RECORD])
    with pytest.raises(LogError, match=f"schema version 4, found bytes 0{version}000000; read it"):
        read_access_log(tmp_path / "log")


def test_events_by_hand(tmp_path: Path) -> None:
    messages = [
        ["InputArrived", 7, BACKWARD, ["tuple", FORWARD, BACKWARD]],
        ["BlockFinished", 9, FORWARD, 2, 8],
        ["WriteFinished", 9, ["LayerId", 0, 3, 1], 2, 8, "ab"],
    ]
    backward, forward = parse_task("0.1B@1"), parse_task("0.2F@1")
    expected = [
        InputArrived(7, backward, (forward, backward)),
        BlockFinished(9, forward, 2, 8),
        WriteFinished(9, LayerId(0, 3, 1), 2, 8, "ab"),
    ]
    write_old(tmp_path / "old", EVENT_MAGIC, 1, messages)
    assert list(read_events(tmp_path / "old")) == expected
    with EventLogWriter(tmp_path / "new") as log:
        for event in expected:
            log.append(event)
    assert list(read_events(tmp_path / "new")) == expected
    write_old(tmp_path / "mixed", EVENT_MAGIC, 2, messages)
    with pytest.raises(LogError, match="expected a controller event"):
        list(read_events(tmp_path / "mixed"))


@pytest.mark.parametrize("task", [["Task", 0, 1, 1, ["TaskKind", "B"], 1], ["Task"], 5, None])
def test_events_of_neither_version_are_refused(tmp_path: Path, task: object) -> None:
    write_old(tmp_path / "old", EVENT_MAGIC, 1, [["BlockFinished", 9, task, 2, 8]])
    with pytest.raises(LogError, match="expected a controller event"):
        list(read_events(tmp_path / "old"))


def test_an_old_log_is_not_continued(tmp_path: Path) -> None:
    """A life that goes on writes a file of its own, so versions never mix in one."""
    write_old(tmp_path / "log", ACCESS_MAGIC, 2, [RECORD])
    with pytest.raises(LogError, match="read it with the naspipe that wrote it"):
        AccessLogWriter(tmp_path / "log")


def test_a_life_of_now_behind_one_of_before(tmp_path: Path) -> None:
    """As after a resume: the later generation's file is of the new version."""
    (tmp_path / "access").mkdir()
    first = tmp_path / "access" / "stage-0.msgpack"
    with AccessLogWriter(first) as log:
        for number in range(3):
            log.append(access(0, 0, number, AccessKind.FORWARD, 10 * number, length_ns=5))
    make_old(tmp_path)
    with AccessLogWriter(tmp_path / "access" / "stage-0.gen-1.msgpack", generation=1) as log:
        for number in (1, 2, 3):
            log.append(access(0, 0, number, AccessKind.FORWARD, number, length_ns=1))
    assert [record.sequence_id for record in read_run_accesses(tmp_path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("version", [2, 3])
def test_runs_of_both_versions_are_compared(tmp_path: Path, version: int) -> None:
    old = make_old(FakeRun().write(tmp_path / "old"), version)
    new = FakeRun().write(tmp_path / "new")
    assert read_run_accesses(old) == read_run_accesses(new)
    for pair in ([old, new], [new, old]):
        (comparison,) = compare_runs(pair)
        assert str(comparison) == "IDENTICAL"
    records = [
        record._replace(version=9)
        if (record.sequence_id, record.kind.value) == (3, "F")
        else record
        for record in sequential_accesses(CHAINS)
    ]
    other = make_old(FakeRun(accesses=records).write(tmp_path / "other"))
    (comparison,) = compare_runs([new, other])
    assert comparison.first is not None and comparison.first.what == "version read"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("words", [["log"], ["report", "-o", "OUT"]])
def test_commands_say_the_same_of_an_old_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], version: int
) -> None:
    run, output = FakeRun().write(tmp_path / "run"), tmp_path / "page.html"
    command = [*(str(output) if word == "OUT" else word for word in words), str(run)]

    def said() -> tuple[str, bytes]:
        assert main(command) == 0
        page = output.read_bytes() if output.exists() else b""
        return capsys.readouterr().out, page

    expected = said()
    make_old(run, version)
    assert said() == expected
