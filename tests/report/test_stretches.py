"""Long runs: numbers of all steps, records of some, and those that are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.config.errors import ConfigError
from naspipe.report import recorded
from naspipe.report.recorded import Asked, read_run
from naspipe.report.run_tables import run_tables
from naspipe.store.metrics import summarize
from tests.store.fake_run import CHAINS, FakeRun, float32_bits, sequential_accesses

STEPS = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    losses = [(1 / (1 + y), float32_bits(1 / (1 + y))) for y in range(STEPS)]
    chains = [CHAINS[y % 4] for y in range(STEPS)]
    return FakeRun(accesses=sequential_accesses(chains), losses=losses).write(tmp_path / "run")


def test_a_long_run_shows_its_middle_and_the_numbers_of_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = read_run(path)
    assert every.whole is None and not every.remarks
    monkeypatch.setattr(recorded, "SHOWN_RECORDS", len(every.accesses) // 4)
    monkeypatch.setattr(recorded, "SHOWN_LOSSES", 13)
    run = read_run(path)
    assert {each.sequence_id for each in run.accesses} == set(range(15, 25))
    assert run.whole == summarize(every.accesses, 1)
    assert "steps 15 to 24" in run.remarks[0] and "--from STEP --to STEP" in run.remarks[0]
    tables = run_tables(run, "run")
    assert tables["numbers"]["num_passes"] == STEPS
    assert tables["losses"]["subnet"] == [3, 7, 11, 15, 19, 23, 27, 31, 35, 39]
    assert tables["losses"]["value"][0] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert set(tables["spans"]["subnet"]) == set(range(15, 25))


@pytest.mark.parametrize(
    ("asked", "steps"), [((3, 5), range(3, 6)), ((38, None), range(38, 40)), ((None, 1), range(2))]
)
def test_asked_steps_are_shown(
    path: Path, asked: tuple[int | None, int | None], steps: range
) -> None:
    run = read_run(path, Asked(*asked))
    assert {each.sequence_id for each in run.accesses} == set(steps)


def test_the_command_has_them_and_refuses_others(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(path), "--from", "3", "--to", "4"]) == 0
    capsys.readouterr()
    for words in (["--from", "40"], ["--from", "5", "--to", "4"], ["--from", "-1"]):
        assert main(["report", str(path), *words]) == 2
        assert "expected steps from 0 to 39, in this order" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="expected steps"):
        read_run(path, Asked(99))
