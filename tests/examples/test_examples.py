"""The examples run as they stand, for a few steps, and leave what a reader expects."""

from __future__ import annotations

import importlib
import math
import re
import sys

import pytest

from tests.test_architecture import ROOT

PLACE = ROOT / "examples"
OF_DATA = ["auxiliary_labels", "class_weights", "cutmix", "mixup"]
OF_TASKS = {
    "blockwise", "elastic", "elastic_text", "elastic_widths", "first_run", "groups", "nni_space",
    "own_space",
    "resume_elsewhere", "search_and_export", "teachers",
}  # fmt: skip
NAMES = sorted(path.stem for path in PLACE.glob("*.py"))


@pytest.fixture
def example(monkeypatch):
    """Imports one, as when it is run by its path."""
    monkeypatch.syspath_prepend(str(PLACE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", OF_DATA)
def test_an_example_trains(example, tmp_path, name):
    run = example(name).main(tmp_path / "run", steps=30)
    first, last = sum(run.losses[:10]), sum(run.losses[-10:])
    assert len(run.losses) == 30 and math.isfinite(last) and last < first
    assert all(len(values) == 30 for values in run.metrics.values()) and run.metrics
    if name == "mixup":
        assert run.validations[-1].scores["top1"] > 0.2


def test_the_page_s_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    code, learned = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(compile(code, "docs/data.md", "exec"), names)
    exec(compile(learned, "docs/data.md", "exec"), {})
    accurate = names["run"].metrics["accuracy"]
    assert len(accurate) == 60 and sum(accurate[-10:]) > sum(accurate[:10])


def test_all_are_there():
    assert set(NAMES) == {*OF_DATA, *OF_TASKS, "digits_parts", "plain_loop", "text_parts"}


def test_first_run(example, tmp_path):
    (one, two), comparison = example("first_run").main(tmp_path, steps=40)
    assert comparison.is_identical and two.manifest["execution"]["stages"] == 2
    assert one.losses == two.losses and sum(one.losses[-10:]) < 0.5 * sum(one.losses[:10])


def test_own_space(example, tmp_path):
    run = example("own_space").main(tmp_path / "run", steps=100, stages=1)
    assert sum(run.losses[-20:]) < 0.8 * sum(run.losses[:20])


@pytest.mark.filterwarnings("ignore:.*is found to be not a nn.Module:RuntimeWarning")  # NNI's
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what NNI imports
def test_nni_space(example, tmp_path):
    pytest.importorskip("nni")
    module = example("nni_space")
    run, best, net = module.main(tmp_path / "run", steps=20, stages=1, budget=10)
    assert type(net) is module.Net and best.scores.top1 > 0.3
    assert run.manifest["definition"]["rules"]["stem"] == "lag(2)"


def test_search_and_export(example, tmp_path):
    module = example("search_and_export")
    search, network = module.main(tmp_path / "run", steps=60, stages=1, budget=10)
    best = search.ranked()[0]
    assert best.cost.params <= 12_000 and 0.2 < best.scores.top1 == pytest.approx(
        module.alone(network)
    )


def test_resume_elsewhere(example, tmp_path):
    cut, comparison = example("resume_elsewhere").main(tmp_path, steps=40)
    assert comparison.is_identical and 0 < cut < 40


def test_plain_loop(example, tmp_path):
    """The rules as the page states them, written by hand: they leave each loss to the last bit."""
    run, losses = example("plain_loop").main(tmp_path / "run", steps=40)
    assert run.losses == losses and losses[-1] < losses[0]


def test_groups(example, tmp_path):
    (_, two), comparison = example("groups").main(tmp_path, steps=4, passes=4)
    assert comparison.is_identical
    assert sum(stage["summed_bytes"] for stage in two.manifest["measured"]["stages"]) > 0


def test_teachers(example, tmp_path):
    large, student = example("teachers").main(tmp_path, steps=20, stages=1)
    assert large.losses[-1] < large.losses[0] and student.losses[-1] < student.losses[0]


def test_blockwise(example, tmp_path):
    found, best, judged = example("blockwise").main(tmp_path, steps=10, stages=1)
    assert len(found.blocks) == len(best.choices) == 3 and best.costs["params"] <= 30_000
    assert 0 < judged.top1 <= 1


def test_elastic_widths(example, tmp_path):
    run, best, exported = example("elastic_widths").main(tmp_path / "run", 12, stages=1, budget=5)
    assert best.cost.params <= 8000 and exported.is_checked and not exported.needs
    assert run.access_order("mix").startswith("0F[32,5]-"), "the largest comes first"


@pytest.mark.parametrize("passes", ["sandwich:1", "subnets:2"])
def test_elastic_text(example, tmp_path, passes):
    run, best, exported = example("elastic_text").main(
        tmp_path / "run", 4, stages=1, budget=3, passes=passes, limit=1000.0
    )
    assert best.cost.latency_ms <= 1000 and exported.is_checked
    largest = run.access_order("layer3").startswith("0F[96,6,4]-")
    assert largest == (passes == "sandwich:1"), "the largest comes first"


def test_elastic(example, tmp_path):
    runs, comparison = example("elastic").main(tmp_path, steps=8, teachers=1)
    assert comparison.is_identical
    assert [run.manifest["execution"]["labels"][:4] for run in runs] == ["serv", "file"]
