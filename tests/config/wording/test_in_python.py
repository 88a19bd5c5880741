"""Options of the command line in messages, and the keywords that Python has for them."""

from __future__ import annotations

import ast
import re
import sys
import traceback
from pathlib import Path

import pytest

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.config.messages import in_python, says_keywords
from tests.equivalence import spaces

ROOT = Path(npp.__file__).parent
ELSEWHERE = {
    "--local-addr", "--rdzv-conf", "--costs", "--latency", "--delay", "--split", "--host", "--to",
    "--from", "--force", "--subnet", "--network", "--registry", "--set", "--retrain", "--help",
    "--scale", "--streams", "--teachers", "--max-",
}  # fmt: skip
"""What only commands have, and what is a command's where it is said."""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("choose --stages 5 or less", "choose stages=5 or less"),
        ("--groups 3: expected as many", "groups=3: expected as many"),
        ("choose --device cpu", "choose device='cpu'"),
        ("use --recompute, more stages", "use recompute=True, more stages"),
        ("choose a new --run-dir", "choose a new run_dir="),
        ("go on with --resume", "go on with resume=True"),
        ("or --set data_path=zmq, which", "or data_path='zmq', which"),
        ("(--set window=N or more)", "(window=N or more)"),
        ("use --set passes=accumulate:4", "use passes='accumulate:4'"),
        ('--set "rule.stem=lag(2)" with', "settings={'rule.stem': 'lag(2)'} with"),
        ("use --set rule.a=lag(2,predict).", "use settings={'rule.a': 'lag(2,predict)'}."),
        ("by --set optimizer.lr=0.1", "by optimizer_options={'lr': 0.1}"),
        ("use --set optimizer.lr", "use optimizer_options={'lr': ...}"),
        ("--set optimizer.betas=[0.9,0.98] or", "optimizer_options={'betas': [0.9,0.98]} or"),
        ("leave --max-flops out", "leave limits={'flops': ...} out"),
        ("use --momentum TAU", "use teacher=naspipe.Momentum(TAU)"),
        ("found none of --teacher", "found none of teacher=naspipe.Teacher(...)"),
        ("run naspipe train --resume x; --resume", "run naspipe train --resume x; resume=True"),
        ("give --validation MODULE:FUNCTION, or", "give held_out=FUNCTION, or"),
        ("with --no-such-thing 3", "with --no-such-thing 3"),
        ("a --stages b\nTraceback:\n x(--stages)", "a stages= b\nTraceback:\n x(--stages)"),
    ],
)
def test_what_stands_for_an_option(said, expected):
    assert in_python(said) == expected


def test_an_error_keeps_its_kind_its_fields_and_its_name():
    def refused(stage):
        """What is said of it."""
        raise npp.StageFailedError(stage, "0.1F", "RuntimeError: use --set nonfinite=skip")

    with pytest.raises(npp.StageFailedError, match="use nonfinite='skip'") as found:
        says_keywords(refused)(3)
    assert found.value.stage == 3 and says_keywords(refused).__doc__ == refused.__doc__


def test_what_is_handed_out_says_keywords_and_what_commands_call_does_not(tmp_path):
    from naspipe.api.train import train

    (tmp_path / "file").write_text("")
    for call, said in ((train, "--run-dir"), (npp.train, "run_dir=")):
        with pytest.raises(ConfigError, match=f"found a file; choose another with {said}$"):
            call(spaces.mixed(), spaces.vectors, len, steps=1, run_dir=tmp_path / "file")


def _messages():
    """Texts of the package with an option in them, with a number for what is filled in."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] in ("cli", "config", "core"):
            continue
        tree = ast.parse(path.read_text())
        joined = {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr)
                  for part in each.values}  # fmt: skip
        raised = [each for each in ast.walk(tree) if isinstance(each, ast.Raise | ast.Return)]
        for node in (inner for each in raised for inner in ast.walk(each)):
            if isinstance(node, ast.JoinedStr):
                yield path, "".join(getattr(part, "value", 3) if isinstance(part, ast.Constant)
                                    else "3" for part in node.values)  # fmt: skip
            elif isinstance(node, ast.Constant) and id(node) not in joined:
                yield path, str(node.value)


def test_every_option_that_a_message_names_has_a_keyword():
    """One that is new in a message, and has another name in Python, belongs in the table."""
    found = [(path, text) for path, text in _messages() if re.search(r"--[a-z]", text)]
    assert len(found) > 40
    for path, text in found:
        for option in re.findall(r"--[a-z][a-z-]*", in_python(text)):
            assert option in ELSEWHERE or re.search("naspipe |torchrun ", text), f"{path}: {text}"


def test_a_second_signal_is_said_in_one_line(monkeypatch, capsys):
    """A traceback of naspipe's would hide how to go on."""
    others = []
    monkeypatch.setattr(sys, "excepthook", lambda *each: others.append(each))

    @says_keywords
    def ended():
        raise KeyboardInterrupt("ended at once by a second signal; go on with --resume")

    with pytest.raises(KeyboardInterrupt, match="go on with resume=True") as found:
        ended()
    sys.excepthook(found.type, found.value, found.tb)
    assert found.value.__suppress_context__ and len(traceback.extract_tb(found.tb)) == 2
    said = "naspipe: ended at once by a second signal; go on with resume=True\n"
    assert (capsys.readouterr().err, others) == (said, [])
    sys.excepthook(ValueError, ValueError("x"), None)
    assert len(others) == 1


def test_an_interruption_of_the_users_stays_as_it_is(monkeypatch):
    hook = sys.excepthook

    @says_keywords
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.excepthook is hook
