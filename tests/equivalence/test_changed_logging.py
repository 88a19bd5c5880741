"""Runs that recorded less in one attempt than in another: they complete and can be compared."""

from __future__ import annotations

import pytest

import naspipe as npp
from naspipe.cli.main import main
from naspipe.report.recorded import read_run
from naspipe.report.run_tables import run_tables
from naspipe.report.summary import agreement
from naspipe.store.compare import compare_runs
from tests.equivalence import spaces
from tests.faults.helpers import Calm, Ends, fail, interrupt_and_resume, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run that recorded everything."""
    return train(tmp_path_factory.mktemp("whole") / "run", Calm(spaces.vectors), stages=2)


def logging(setting, stages=1):
    return {"stages": stages, "execution": {"access_log": setting}}


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("sampled:3", "full", "one step in 3 from step 0 to {last}, all from step {cut}"),
        ("off", "full", "none from step 0 to {last}, all from step {cut}"),
        ("full", "sampled:3", "all from step 0 to {last}, one step in 3 from step {cut}"),
        ("full", "off", "all from step 0 to {last}, none from step {cut}"),
    ],
)
def test_a_resumed_run_that_records_another_share(tmp_path, whole, capsys, first, then, said):
    ended = interrupt_and_resume(tmp_path, spaces.vectors, logging(first, 2), logging(then))
    assert ended.manifest["status"] == "complete"
    assert "bubble_ratio" not in ended.manifest["measured"]
    cut = ended.manifest["life"]["first"][0]
    for pair in ((whole, ended), (ended, whole)):
        (comparison,) = compare_runs([run.directory.path for run in pair])
        assert comparison.is_identical, str(comparison)
        assert comparison.warnings[-1].endswith(said.format(cut=cut, last=cut - 1))
    path = str(ended.directory.path)
    assert main(["compare", path, str(whole.directory.path)]) == 0
    assert main(["log", path]) == 0 and ended.access_order("head")
    assert main(["report", path, "-o", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    one, other = read_run(whole.directory.path), read_run(ended.directory.path)
    assert agreement(one, other).startswith("same losses; accesses are compared only where")
    tables = run_tables(other, "run")
    assert "bubble_ratio" not in tables["numbers"] and not tables["words"]
    assert any("Not every access was recorded" in remark for remark in tables["remarks"])


def test_what_was_not_recorded_and_is_done_again_counts_no_more(tmp_path, whole):
    """Without a checkpoint the second attempt starts at step 0, so its log is complete."""
    path = tmp_path / "run"
    ends = Ends(spaces.vectors, 3, fail, tmp_path / "marker")
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(path, ends, **logging("off"))
    run = train(path, Calm(spaces.vectors), resume=True, stages=2)
    assert run.manifest["recorded_steps"] == [{"first": 0, "every": 1}]
    assert 0 < run.manifest["measured"]["bubble_ratio"] < 1
    (comparison,) = compare_runs([whole.directory.path, path])
    assert comparison.is_identical
    assert not any("access" in warning for warning in comparison.warnings)


def test_a_run_whose_log_is_checked_as_a_whole(tmp_path):
    """With an exchange, layers are not checked one at a time."""
    more = {"recipe": {"clip_global_norm": 1.0}}
    run = interrupt_and_resume(
        tmp_path, spaces.vectors, logging("sampled:2"), logging("full", 2), **more
    )
    assert run.manifest["status"] == "complete"
