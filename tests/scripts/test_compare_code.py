"""scripts/compare_code.py: which rows there are, and that what differs is said to differ."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest

from naspipe.cli import search, train
from naspipe.cli.main import build_parser
from scripts import compare_code
from scripts.comparing.bits import Bench, Kind, file_difference, judge, run_difference
from scripts.comparing.rows import ALONE, APART, FACTORS, QUICK, ROWS, Row, parse_row
from scripts.comparing.versions import Ended, Version
from tests.store.fake_run import FakeRun, float32_bits

GOOD, REFUSED, BROKEN = (Ended(status, "", f"said {status}", 1.0) for status in (0, 2, 1))
PAIRED = {
    factor: [value for value in values if value not in ALONE]
    for factor, values in FACTORS.items()
    if factor != "action"
}


def apart():
    return {frozenset(pair) for left, right in APART for pair in itertools.product(left, right)}


def test_every_value_and_every_pair_of_values_is_in_a_row():
    values = [set(row.values.values()) for row in ROWS]
    for factor, known in FACTORS.items():
        assert set(known) == {row.values[factor] for row in ROWS}
    met = {frozenset(pair) for row in values for pair in itertools.combinations(row, 2)}
    for one, other in itertools.combinations(PAIRED.values(), 2):
        wanted = {frozenset(pair) for pair in itertools.product(one, other)}
        assert wanted - met - apart() == set()
        assert wanted & met & apart() == set(), "what is in a row need not be left out"


def test_a_quick_go_has_every_value_and_kind_of_action():
    chosen = [row for row in ROWS if row.name in QUICK]
    assert len(chosen) == len(QUICK) == 10
    for factor, known in PAIRED.items():
        assert set(known) <= {row.values[factor] for row in chosen}
    kinds = {row.values["action"].partition("-")[0] for row in chosen}
    assert kinds == {"train", "validate", "resume", "search"}


def test_every_action_is_tried_on_every_space():
    met = {(row.values["action"].partition("-")[0], row.values["space"]) for row in ROWS}
    assert met == set(
        itertools.product(("train", "validate", "resume", "search"), FACTORS["space"])
    )
    resumed = [row.text for row in ROWS if row.values["action"].startswith("resume")]
    for word in ("2x", "accumulate:3", "sandwich:1", "growing", "2-streams"):
        assert any(word in text.split() for text in resumed)


def test_asp_on_several_stages_trains_only_what_no_timing_can_change():
    rows = [row.values for row in ROWS if row.values["policy"] == "asp"]
    several = [row for row in rows if row["stages"] != "1-stage"]
    assert {row["stages"] for row in several} == {"2-stages", "4-stages"}
    for row in several:
        assert (row["rules"], row["sampler"]) == ("frozen", "spaced") and row["space"] != "own"


def test_the_command_line_knows_every_row():
    for row in ROWS:
        known = build_parser("train", train).parse_args(["train", *row.train])
        assert known.steps == row.steps and known.seed == 1
        if row.values["action"].startswith("search"):
            build_parser("search", search).parse_args(["search", "run", *row.search])


def test_a_row_says_what_is_unusual_and_its_options_follow_the_space():
    row = parse_row("07", "nlp.c2 frozen ema resume-4 accumulate:3")
    assert row.text == "resume-4 nlp.c2 accumulate:3 ema frozen" and row.steps == 17
    assert {"rule.head=frozen", "rule.final_norm=frozen", "ema=0.9"} <= set(row.train)
    assert parse_row("08", row.text).values == row.values
    for text in ("cv.c2 colourful", "cv.c2 bsp asp"):
        with pytest.raises(ValueError, match="row 09: expected one value of each factor"):
            parse_row("09", text)


@pytest.mark.parametrize(
    ("before", "present", "found", "kind", "said"),
    [
        (GOOD, GOOD, "", Kind.IDENTICAL, ""),
        (GOOD, GOOD, "step 3", Kind.DIFFERS, "step 3"),
        (GOOD, REFUSED, "", Kind.DIFFERS, "the present code refuses it: said 2"),
        (GOOD, BROKEN, "", Kind.FAILED, "present: status 1: said 1"),
        (BROKEN, GOOD, "", Kind.FAILED, "before: status 1: said 1"),
        (BROKEN, REFUSED, "", Kind.FAILED, "before: status 1: said 1"),
        (REFUSED, GOOD, "", Kind.CANNOT, "said 2"),
        (REFUSED, BROKEN, "", Kind.CANNOT, "said 2"),
        (REFUSED, REFUSED, "", Kind.FAILED, "neither version takes it: said 2"),
    ],
)
def test_the_verdict_follows_from_both_ends(before, present, found, kind, said):
    verdict = judge(before, present, lambda: found)
    assert verdict == (kind, said)
    assert verdict.is_wrong == (kind in (Kind.DIFFERS, Kind.FAILED))


def test_runs_that_differ_are_said_to_differ(tmp_path):
    same = [FakeRun().write(tmp_path / name) for name in ("one", "other")]
    assert run_difference(*same) == ""
    seeded = FakeRun(definition={"seed": 2}).write(tmp_path / "seed")
    assert "definition" in run_difference(same[0], seeded)
    losses = FakeRun().losses
    losses[2] = (losses[2][0], float32_bits(1.2500001))
    wrong = FakeRun(losses=losses).write(tmp_path / "loss")
    assert run_difference(same[0], wrong).startswith("first difference: step 2: loss")
    bare = FakeRun(accesses=[]).write(tmp_path / "bare")
    assert "the order of accesses was not compared" in run_difference(same[0], bare)
    broken = FakeRun(status="failed").write(tmp_path / "broken")
    assert "is not complete" in run_difference(same[0], broken)
    assert "cannot be compared" in run_difference(same[0], tmp_path / "nowhere")


def test_every_stream_is_compared(tmp_path):
    wrong = FakeRun(losses=[*FakeRun().losses[:3], (1.0, "00000000")])
    for name, second in (("one", FakeRun()), ("other", FakeRun()), ("third", wrong)):
        FakeRun().write(tmp_path / name / "stream-0")
        second.write(tmp_path / name / "stream-1")
    FakeRun().write(tmp_path / "short/stream-0")
    assert run_difference(tmp_path / "one", tmp_path / "other") == ""
    assert "step 3: loss" in run_difference(tmp_path / "one", tmp_path / "third")
    assert run_difference(tmp_path / "one", tmp_path / "short") == "2 streams against 1"


def test_files_are_compared_to_the_byte(tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    one.write_bytes(b"a\nb\n")
    assert "one.jsonl: expected one of both versions" in file_difference(one, other)
    other.write_bytes(b"a\nb\n")
    assert file_difference(one, other) == ""
    other.write_bytes(b"a\nb")
    assert file_difference(one, other) == "one.jsonl:3:  against absent"
    other.write_bytes(b"a\nc\n")
    assert file_difference(one, other) == "one.jsonl:2: b against c"


class Pretended:
    """A place whose commands leave what a version is said to leave."""

    def __init__(self, folder: Path, present: FakeRun, status: int = 0) -> None:
        self.folder, self._present, self._status = folder, present, status
        self.commands: list[tuple[str, str]] = []

    def naspipe(self, version, command, *words, stop_when=None):
        self.commands.append((version.name, command))
        if command == "search":
            text = f"{self._present.losses}" if version.name == "present" else f"{FakeRun().losses}"
            found = Path(words[0]) / f"search-{version.name}"
            found.mkdir()
            (found / "candidates.jsonl").write_text(text)
            return GOOD
        if "--resume" in words:
            path = Path(words[words.index("--resume") + 1])
            shutil.rmtree(path)
        else:
            path = Path(words[words.index("--run-dir") + 1])
        (self._present if version.name == "present" else FakeRun()).write(path)
        (path / "validation.jsonl").write_text(version.name)
        return Ended(self._status, "", "said", 1.0) if stop_when else GOOD


def compared(tmp_path: Path, action: str, present: FakeRun, status: int = 143):
    place = Pretended(tmp_path, present, status)
    sides = (Version("before", tmp_path, "a"), Version("present", tmp_path, "b"))
    bench = Bench(*sides, place, 20_000, tmp_path / "kept")
    return bench.compare(parse_row("01", f"cv.c2 {action}")), place.commands


WRONG = FakeRun(losses=[*FakeRun().losses[:3], (1.0, "00000000")])


@pytest.mark.parametrize("action", ["train", "resume-2", "search-greedy"])
def test_a_row_is_identical_or_differs(tmp_path, action):
    found, commands = compared(tmp_path, action, FakeRun())
    assert (found["verdict"], found["detail"]) == ("IDENTICAL", "")
    assert {name for name, _ in commands} == {"before", "present"}
    assert not (tmp_path / "kept").exists() and not (tmp_path / "row-01").exists()
    found, _ = compared(tmp_path, action, WRONG)
    assert found["verdict"] == "DIFFERS" and (tmp_path / "kept/01").is_dir()


def test_a_row_that_differs_is_run_once_more_before(tmp_path):
    found, commands = compared(tmp_path, "train", WRONG)
    assert found["detail"].endswith("a second run before has the bits of the first")
    assert commands == [("before", "train"), ("present", "train"), ("before", "train")]


def test_what_validation_found_is_compared_beside_the_run(tmp_path):
    found, _ = compared(tmp_path, "validate", FakeRun())
    assert found["verdict"] == "DIFFERS"
    assert found["detail"].startswith("validation.jsonl:1: before against present")


def test_a_run_that_was_not_stopped_proves_nothing_of_a_resume(tmp_path):
    found, _ = compared(tmp_path, "resume-2", FakeRun(), status=0)
    assert (found["verdict"], found["detail"]) == ("FAILED", "before: status 0: said")


MUTATION = """
from torch.nn import functional as _functional

_plain = _functional.cross_entropy
_functional.cross_entropy = lambda *given, **more: _plain(*given, **more) * (1 + 2**-20)
"""


@pytest.mark.long
def test_the_whole_script_sees_a_changed_bit(tmp_path, monkeypatch, capsys):
    """Against a copy of the code whose losses are a millionth greater."""
    copy = tmp_path / "copy"
    for folder in ("naspipe", "search_spaces"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(compare_code.ROOT / folder, copy / folder, ignore=ignored)
    code = copy / "naspipe/__init__.py"
    code.write_text(code.read_text() + MUTATION)
    monkeypatch.setattr(Row, "steps", 3)
    monkeypatch.setattr(compare_code.signal, "signal", lambda *_: None)
    output = tmp_path / "bits.json"
    argv = ["compare_code.py", str(copy), "--rows", "11", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", argv)
    assert compare_code.main() == 1
    found = json.loads(output.read_text())
    (row,) = found["rows"]
    assert row["verdict"] == "DIFFERS" and "first difference: step 0" in row["detail"]
    assert row["detail"].endswith("a second run before has the bits of the first")
    assert found["before"]["source"] != found["present"]["source"]
    assert "1 rows: 1 DIFFERS" in capsys.readouterr().out
