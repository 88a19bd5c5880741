"""Code that is in no file, as where a script is read from stdin."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from torch import nn

import naspipe as npp
from naspipe.checks.fingerprint import code_digests
from naspipe.config.recipe import Recipe
from naspipe.config.user_code import why_no_source
from naspipe.jobs.workload import Workload
from tests.equivalence import spaces


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("typed")
    module.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "typed", module)
    exec(
        "from torch import nn\nclass Mine(nn.Linear):\n    def __init__(self):\n"
        "        super().__init__(16, 10)\n",
        vars(module),
    )
    return module


def test_a_script_from_stdin_has_no_digest(typed):
    space = npp.Space("mine", [npp.Block([typed.Mine])])
    identity = {"steps": 2, "recipe": Recipe()}
    work = Workload.of(space, spaces.vectors, nn.CrossEntropyLoss(), **identity)
    assert "<stdin>" not in code_digests([work])
    assert why_no_source(typed.Mine) == "is defined in a notebook or at a prompt"
