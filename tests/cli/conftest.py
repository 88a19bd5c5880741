"""A working directory of its own for each test of bad input."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from naspipe.machine import forking as apart
from naspipe.profiling import profiles as profile_apart
from tests.cli.refusals import MODULE, Refusal


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    shutil.copy(Path(__file__).with_name(f"{MODULE}.py"), tmp_path)
    yield tmp_path
    for name in (MODULE, "broken_module", "raising_module"):
        sys.modules.pop(name, None)


@pytest.fixture
def refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Refusal:
    for module in (apart, profile_apart):
        monkeypatch.setattr(module, "SLOW_SECONDS", 60.0)  # a busy machine adds no line
    return Refusal(place, capsys)
