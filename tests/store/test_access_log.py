"""The access log: equal values come back, over stages and over resumes."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import LogError
from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.store.access_log import AccessLogWriter, read_access_log, read_run_accesses
from naspipe.store.access_segments import MAGIC, iterate_heads, segment_parts
from naspipe.store.frames import FramedWriter
from tests.store.fake_run import access

small = st.integers(0, 1 << 20)
times = st.integers(-(1 << 62), 1 << 62)
accesses = st.builds(
    Access,
    st.builds(LayerId, small, small, small),
    small,
    st.sampled_from(AccessKind),
    st.integers(-1, 1 << 40),
    small,
    times,
    times,
    small,
    st.text(max_size=64),
    st.sampled_from([0, 0, 7]) | small,
)


@given(records=st.lists(accesses, max_size=20))
def test_a_log_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, records: list[Access]
) -> None:
    path = tmp_path_factory.mktemp("log") / "stage-0.msgpack"
    with AccessLogWriter(path) as log:
        for record in records:
            log.append(record)
    assert read_access_log(path) == records


@pytest.mark.parametrize(("owed_ns", "columns"), [(0, 9), (3, 10)])
def test_a_log_of_whole_backwards_is_what_it_was_before(owed_ns: int, columns: int) -> None:
    records = [access(0, 0, 0, AccessKind.BACKWARD, 0), access(0, 0, 0, AccessKind.WRITE, 10)]
    _, body = segment_parts([records[0], records[1]._replace(owed_ns=owed_ns)], 0)
    assert len(msgpack.unpackb(body)) == columns


@pytest.mark.parametrize("version", [1, 3, 5])
def test_other_schemas_are_refused(tmp_path: Path, version: int) -> None:
    """Such a file is neither read nor continued."""
    path = tmp_path / "log"
    with FramedWriter(path, MAGIC, version) as frames:
        frames.append(b"payload")
    for opened in (read_access_log, AccessLogWriter, lambda log: list(iterate_heads(log))):
        with pytest.raises(LogError) as caught:
            opened(path)
        assert str(caught.value) == (
            f"{path}, offset 8: expected schema version 4, found bytes 0{version}000000; read it "
            f"with the naspipe that wrote it"
        )


def test_stages_merge_by_time(tmp_path: Path) -> None:
    (tmp_path / "access").mkdir()
    for stage in (0, 1, 10):
        with AccessLogWriter(tmp_path / "access" / f"stage-{stage}.msgpack") as log:
            for place in range(3):
                start = 100 * place - stage
                log.append(access(0, 0, place, AccessKind.FORWARD, start, stage=stage))
    starts = [record.start_ns for record in read_run_accesses(tmp_path)]
    assert starts == sorted(starts) and len(starts) == 9


def test_a_resume_replaces_what_it_did_again(tmp_path: Path) -> None:
    """Generation 0 dies in subnet 2; generation 1 goes on from subnet 1, on a younger clock."""
    (tmp_path / "access").mkdir()
    path = tmp_path / "access" / "stage-0.msgpack"
    with AccessLogWriter(path) as log:
        for number in range(3):
            start = 1000 + number * 10
            log.append(access(0, 0, number, AccessKind.FORWARD, start, length_ns=5))
    with AccessLogWriter(path, generation=1) as log:
        for number in (1, 2, 3):
            log.append(access(0, 0, number, AccessKind.FORWARD, number, length_ns=1))
    assert len(read_access_log(path)) == 6
    found = read_run_accesses(tmp_path)
    assert [record.sequence_id for record in found] == [0, 1, 2, 3]
    assert [record.start_ns for record in found] == [1000, 1005, 1006, 1007]


def test_a_run_without_logs_has_no_accesses(tmp_path: Path) -> None:
    assert read_run_accesses(tmp_path) == []
