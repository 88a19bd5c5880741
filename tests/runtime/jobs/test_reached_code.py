"""Code that differs is told by name, whoever calls it; what is only said otherwise is not."""

from __future__ import annotations

import functools
import subprocess
import sys
import types

import pytest

from naspipe.core.user_code import is_users_module
from naspipe.runtime.jobs.reached_code import reached_code

BEFORE = '''
import helpers

SCALE = 2
CALLS = 0
TABLE = {"rate": [0.1, 0.2]}


class Base:
    share = 0.5

    def forward(self, y):
        return scaled(y) * self.share


class Layer(Base):
    made = 0

    def __init__(self, width=3):
        self.width = width
        Layer.made += 1

    @property
    def twice(self):
        return self.width * 2

    @staticmethod
    def kinds():
        return {"one", "two", "three"}

    def count(self):
        global CALLS
        CALLS += 1
        self.seen = CALLS


def scaled(y):
    """Says something."""
    return y * SCALE + TABLE["rate"][0]


def loss(output, target):
    inner = lambda each: each + 1
    return inner(Layer().forward(output)) + helpers.shift(target)
'''
HELPERS = "def shift(y):\n    return y + 1\n"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Makes a module of a user's from a text, with another beside it."""

    def make(text=BEFORE, helpers=HELPERS):
        for name, each in (("helpers", helpers), ("mine", text)):
            file = tmp_path / f"{name}.py"
            file.write_text(each)
            module = types.ModuleType(name)
            module.__file__ = str(file)
            monkeypatch.setitem(sys.modules, name, module)
            exec(compile(each, str(file), "exec"), module.__dict__)
        return module

    assert not is_users_module("torch.nn")
    return make


def changed(one, other):
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


@pytest.mark.parametrize(("was", "now", "names"), [
    ("y * SCALE", "y + SCALE", ["mine.scaled"]),
    ("each + 1", "each + 2", ["mine.loss"]),
    ("SCALE = 2", "SCALE = 3", ["mine.SCALE"]),
    ("[0.1, 0.2]", "[0.1, 0.3]", ["mine.TABLE"]),
    ("share = 0.5", "share = 0.1", ["mine.Base.share"]),
    ("self.width * 2", "self.width * 3", ["mine.Layer.twice"]),
    ('"three"', '"four"', ["mine.Layer.kinds"]),
    ("width=3", "width=4", []),
    ("self.width = width", "self.width = -width", ["mine.Layer.__init__"]),
    ("    return inner", "    # It adds.\n    return inner", []),
    ("Says something.", "Says something else.", []),
    ("CALLS = 0", "CALLS = 7", []),
    ("made = 0", "made = 7", []),
    ("inner", "outer", []),
])  # fmt: skip
def test_what_is_written_otherwise(made, was, now, names):
    assert BEFORE.count(was)
    one = reached_code([made().loss])
    assert changed(one, reached_code([made(BEFORE.replace(was, now)).loss])) == names


def test_another_module_of_the_users(made):
    one = reached_code([made().loss])
    two = reached_code([made(helpers=HELPERS.replace("+ 1", "+ 2")).loss])
    assert changed(one, two) == ["helpers.shift"]


def test_what_leads_to_it(made):
    module = made()
    for root in (
        functools.partial(module.loss, target=1),
        lambda: module.Layer(),
        module.Layer,
        module.Layer().forward,
        [module.Layer()],
    ):
        assert "mine.scaled" in reached_code([root])


def test_an_object_goes_by_its_attributes(made):
    module = made(BEFORE.replace("Layer.made += 1", "pass"))
    one, two = (reached_code([module.Layer(width)]) for width in (3, 4))
    assert changed(one, two) == ["mine.Layer.width"]


def test_it_is_the_same_in_every_process(tmp_path):
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "mine.py").write_text(BEFORE)
    script = "import mine; from naspipe.runtime.jobs.reached_code import reached_code as r; "
    found = {
        subprocess.run(
            [sys.executable, "-c", f"{script}print(r([mine.loss]))"],
            env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}", "PYTHONHASHSEED": str(seed)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in (1, 2)
    }  # fmt: skip
    assert len(found) == 1 and "mine.Base.forward" in found.pop()
