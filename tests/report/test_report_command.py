"""``naspipe report`` on made and on damaged run directories."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from naspipe.cli.main import main
from tests.store.fake_run import FakeRun


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return FakeRun().write(tmp_path / "run")


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith("naspipe: ")
    return output.err


def test_a_page_is_written_into_the_run_and_a_trace_when_it_is_asked_for(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {path.name for path in run.iterdir()}
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.split() == [str(run / "report.html")]
    assert {path.name for path in run.iterdir()} - kept == {"report.html"}
    assert main(["report", str(run), "--trace"]) == 0
    assert capsys.readouterr().out.split() == [str(run / "report.html"), str(run / "trace.json")]
    assert json.loads((run / "trace.json").read_text())["traceEvents"]
    before = (run / "report.html").read_bytes()
    assert main(["report", str(run)]) == 0, "a report is replaced"
    assert (run / "report.html").read_bytes() == before, "the same run gives the same page"


def test_the_page_names_no_other_file_and_forbids_requests(run: Path) -> None:
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert len(text) < 2_500_000, "plotly.js is packed"
    start = text.index('id="plotly">')
    packed = text[start + len('id="plotly">') : text.index("</script>", start)]
    assert zlib.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    own = text.replace(packed, "")
    assert len(own) < len(text) / 10
    assert not re.search(r"(src|href|action)\s*=|url\(|@import|https?://", own)
    assert "default-src 'none'; script-src 'unsafe-inline'" in own


def test_several_runs_are_named_from_their_common_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [FakeRun().write(tmp_path / name / "run") for name in ("a", "b")]
    output = tmp_path / "both.html"
    assert main(["report", *map(str, paths), "-o", str(output), "--trace"]) == 0
    assert "<h1>toy: a/run, b/run</h1>" in output.read_text()
    assert all((path / "trace.json").exists() for path in paths)


def test_a_title_is_text(tmp_path: Path) -> None:
    path = FakeRun().write(tmp_path / "<img onerror=x> & more")
    assert main(["report", str(path)]) == 0
    assert "&lt;img onerror=x> &amp; more" in (path / "report.html").read_text()


def test_a_failed_run_is_reported(tmp_path: Path) -> None:
    path = FakeRun(status="failed").write(tmp_path / "run")
    assert main(["report", str(path)]) == 0


def test_no_run_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "required: RUN" in refusal([], capsys)


def test_what_is_no_run_directory_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is not a run directory" in refusal([str(tmp_path / "absent")], capsys)
    assert "is not a run directory" in refusal([str(tmp_path)], capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_run_named_twice_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is named twice" in refusal([str(run), f"{run.parent}/./run"], capsys)


def test_a_place_that_cannot_be_written_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "found a directory" in refusal([str(run), "-o", str(tmp_path)], capsys)
    absent = tmp_path / "absent" / "page.html"
    assert "make it first" in refusal([str(run), "-o", str(absent)], capsys)


@pytest.mark.parametrize("name", ["access/stage-0.msgpack", "losses.jsonl"])
def test_a_damaged_file_is_named(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((run / name).read_bytes())
    data[20:24] = b"\xff\xff\xff\xff"
    (run / name).write_bytes(data)
    line = refusal([str(run)], capsys)
    assert str(run / name) in line and "restore the file or leave this run out" in line
    assert not (run / "report.html").exists()


def test_the_losses_of_a_whole_run_may_not_be_missing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "losses.jsonl").unlink()
    assert "losses.jsonl" in refusal([str(run)], capsys)
