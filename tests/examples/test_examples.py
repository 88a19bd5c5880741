"""The examples run as they stand, for a few steps, and leave what a reader expects."""

from __future__ import annotations

import importlib
import math
import re
import sys

import pytest

from tests.test_architecture import ROOT

PLACE = ROOT / "examples"
NAMES = sorted(path.stem for path in PLACE.glob("*.py") if path.stem != "digits_parts")


@pytest.fixture
def example(monkeypatch):
    """Imports one, as when it is run by its path."""
    monkeypatch.syspath_prepend(str(PLACE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module
    for name in (*NAMES, "digits_parts"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", NAMES)
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
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(compile(code, "docs/data.md", "exec"), names)
    accurate = names["run"].metrics["accuracy"]
    assert len(accurate) == 60 and sum(accurate[-10:]) > sum(accurate[:10])


def test_all_are_there():
    assert NAMES == ["auxiliary_labels", "class_weights", "cutmix", "mixup"]
