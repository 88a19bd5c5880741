"""The lists of settings, and what the command line says of steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.config.definition import Definition
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.settings import declared
from scripts.write_settings import page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_what_is_declared() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python scripts/write_settings.py"
    for key in (*declared(Recipe), *declared(Execution), *declared(Definition)):
        assert f"- `{key}=" in page()
    assert max(map(len, page().splitlines())) <= 160


@pytest.mark.parametrize("command", ["train", "simulate", "plan"])
def test_steps_are_steps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--steps S number of optimizer steps, of one subnet each unless" in text
    if command == "train":
        assert "--checkpoint-every STEPS number of optimizer steps of a stream between" in text
        assert "--validate-every STEPS number of optimizer steps between validations of a" in text
        for key in (*declared(Recipe), *declared(Execution)):
            assert f" {key}," in text or f" {key} " in f"{text} ", key
