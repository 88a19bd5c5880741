"""A setting is declared once: its flag, help, bounds, lists and JSON come from there."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import pytest

from naspipe.cli import train
from naspipe.cli.main import Parser
from naspipe.cli.options import flags, given, key_list
from naspipe.config.definition import Settings, apply_settings
from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.execution import Execution
from naspipe.config.settings import Checked, Flag, between, declared, group, setting
from scripts.write_settings import page


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSettings(Checked):
    """A group that no other code knows."""

    tutors: int = setting(
        0, "networks that teach. Each has a worker of its own.", between(0, 8), flag=Flag("N"),
        example="2",
    )  # fmt: skip
    keep_labels: bool = setting(True, "keep 100% of what they say.", flag=Flag(), example="false")


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Wider(Execution):
    """An execution with one group more."""

    schooling: TeacherSettings = group(TeacherSettings(), "schooling")


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    monkeypatch.setattr(train, "Execution", Wider)
    made = Parser(prog="naspipe train", formatter_class=argparse.RawDescriptionHelpFormatter)
    train.add_arguments(made)
    return made


def test_a_declared_field_has_a_flag(parser: argparse.ArgumentParser) -> None:
    arguments = parser.parse_args(["--tutors", "3", "--no-keep-labels", "--stages", "2"])
    assert given(Wider, arguments) == {"tutors": 3, "keep_labels": False, "stages": 2}
    execution = Wider(**given(Wider, arguments))
    assert execution.schooling == TeacherSettings(tutors=3, keep_labels=False)
    assert execution.pipeline.stages == 2
    assert given(Wider, parser.parse_args([])) == {}
    with pytest.raises(ConfigError, match="--tutors: expected a whole number, found 'many'"):
        parser.parse_args(["--tutors", "many"])


def test_a_declared_field_is_in_help_and_lists(parser: argparse.ArgumentParser) -> None:
    text = parser.format_help()
    assert "  --tutors N            networks that teach (default: 0)\n" in text
    assert "  --no-keep-labels      keep 100% of what they say\n" in text
    assert "  schooling: tutors, keep_labels\n" in text
    assert (
        "  schooling: tutors, keep_labels\n" in key_list(Wider) and "keep_labels" not in key_list()
    )
    assert (
        "### Schooling\n\n- `tutors=0`, `--tutors` (0 to 8): networks that teach. Each has a "
        "worker of its own. Example: `--set tutors=2`.\n- `keep_labels=true`, `--no-keep-labels`"
    ) in page(Wider)


def test_a_declared_field_is_reached_by_set_and_checked() -> None:
    settings = apply_settings(Settings(execution=Wider()), ["tutors=8", "keep_labels=0"])
    assert isinstance(settings.execution, Wider)
    assert settings.execution.schooling == TeacherSettings(tutors=8, keep_labels=False)
    for refused in (lambda: TeacherSettings(tutors=9), lambda: Wider(tutors=9)):
        with pytest.raises(ConfigError, match=r"^tutors: expected 0 to 8, found 9$"):
            refused()
    with pytest.raises(ConfigError, match=r"^--set tutors: expected a whole number, found 'x'$"):
        apply_settings(settings, ["tutors=x"])
    with pytest.raises(ConfigError, match=r"^--set tutor: unknown key .did you mean tutors?"):
        apply_settings(settings, ["tutor=1"])


def test_a_declared_field_is_in_the_json() -> None:
    found = Wider(tutors=1, stages=2).as_dict()
    assert found == {**Execution(stages=2).as_dict(), "tutors": 1, "keep_labels": True}
    assert Wider(**json.loads(json.dumps(found))) == Wider(tutors=1, stages=2)
    assert Wider(**Execution(stages=2).as_dict()) == Wider(stages=2), "a manifest from before"


def test_a_key_is_declared_once() -> None:
    @dataclass(frozen=True)
    class Twice:
        one: int = setting(1, "one.")
        two: int = setting(1, "another.", key="one")

    @dataclass(frozen=True, slots=True, init=False)
    class Clash(Execution):
        more: Twice = group(TeacherSettings(), "more")  # type: ignore[assignment]
        tutors: TeacherSettings = group(TeacherSettings(), "tutors")

    for node in (Twice, Clash):
        with pytest.raises(InvariantError, match="is declared twice"):
            declared(node)


def test_every_flag_says_what_it_is() -> None:
    for each in declared(Execution).values():
        assert each.brief and each.help[0].islower() and each.help.endswith("."), each.key
        assert each.example and "\n" not in each.help, each.key
        assert (each.kind in (int, float)) <= bool(each.allowed), f"{each.key} has no bounds"
    assert len(flags(Execution)) == 17
