"""What ``resume`` may say, and what there is to go on with."""

from __future__ import annotations

import pytest

from naspipe.api.start_state import asked_resume, is_begun
from naspipe.cli import train
from naspipe.cli.main import build_parser
from naspipe.config.errors import ConfigError


@pytest.mark.parametrize(("statuses", "found"), [
    ([], False), ([None], False), (["planning"], False), ([None, "planning"], False),
    (["running"], True), (["failed"], True), (["complete", None], True),
])  # fmt: skip
def test_what_there_is_to_go_on_with(statuses, found):
    assert is_begun(statuses) is found


def test_what_python_may_say():
    assert asked_resume("if_exists", "runs/one") == {"resumes": False, "may_resume": True}
    assert asked_resume(True, "runs/one") == {"resumes": True, "may_resume": False}
    assert asked_resume(False, None) == {"resumes": False, "may_resume": False}
    for wrong, place in (("auto", "runs/one"), ("if_exists", None), (True, None)):
        with pytest.raises(ConfigError, match="resume: expected"):
            asked_resume(wrong, place)


@pytest.mark.parametrize(("words", "said"), [
    (["cv.c3"], "expected --run-dir DIR with it, and the definition of the run, found none"),
    (["--resume", "runs/one"], "found --resume runs/one"),
])  # fmt: skip
def test_what_the_option_needs(words, said):
    arguments = build_parser("train", train).parse_args(["train", *words, "--resume-if-exists"])
    with pytest.raises(ConfigError, match=said):
        train.resume_of(arguments)
