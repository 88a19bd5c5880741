"""The command line: exit statuses, what goes where, and help that is quick."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from naspipe import __version__
from naspipe.cli import main as cli
from naspipe.config.errors import ConfigError, DataError, LogError, StageFailedError
from tests.store.fake_run import FakeRun, float32_bits

COMMANDS = ("compare", "log")


def naspipe(*words: str) -> list[str]:
    return [sys.executable, "-m", "naspipe", *words]


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(FakeRun().write(tmp_path / "run"))


def other_run(tmp_path: Path, name: str = "other", **changes: object) -> str:
    return str(FakeRun(**changes).write(tmp_path / name))  # type: ignore[arg-type]


def test_identical_runs(tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", run, other_run(tmp_path), other_run(tmp_path, "third")]) == 0
    output = capsys.readouterr()
    assert output.out.count("IDENTICAL") == 2
    assert output.out.count("reference") == 1
    assert output.err == ""


def test_runs_that_differ(tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    losses = [(value, float32_bits(value)) for value in (2.0, 1.5, 1.25, 0.5)]
    assert cli.main(["compare", run, other_run(tmp_path, losses=losses)]) == 1
    output = capsys.readouterr().out
    assert "DIFFERS" in output
    assert "first difference: step 3: loss: 1.0 (3f800000) against 0.5 (3f000000)" in output


def test_runs_that_cannot_be_compared(
    tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", run, other_run(tmp_path, definition={"seed": 2})]) == 2
    output = capsys.readouterr().out
    assert "NOT COMPARABLE" in output and "definition.data is" in output


def test_a_damaged_run_cannot_be_compared(
    tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_run(tmp_path)
    (Path(other) / "losses.jsonl").write_text("x\n")
    assert cli.main(["compare", run, other]) == 2
    assert capsys.readouterr().err.startswith("naspipe: cannot be compared: ")


def test_other_hardware_is_a_warning(
    tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", run, other_run(tmp_path, hardware={"cpu": "arm"})]) == 0
    assert "warning" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["compare", "nowhere", "x"], ["log", "nowhere"]])
def test_what_is_no_run_directory(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    output = capsys.readouterr()
    assert output.err.startswith("naspipe: nowhere is not a run directory")
    assert output.err.count("\n") == 1 and output.out == ""


def test_the_order_of_one_layer(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", run, "--layer", "0.1"]) == 0
    assert capsys.readouterr().out == "1F-1B-3F-3B\n"
    assert cli.main(["log", run, "--layer", "head"]) == 0
    assert capsys.readouterr().out == "0F-0B-1F-1B-2F-2B-3F-3B\n"


def test_the_order_of_every_layer(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", run]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["stem", "0.0", "0.1", "1.0", "1.1", "head"]
    assert lines[0] == ["stem", "frozen", "0", "0F-1F-2F-3F"]
    assert lines[1] == ["0.0", "exact", "2", "0F-0B-2F-2B"]


def test_orders_are_cut_to_the_terminal(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    assert cli.main(["log", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 30 and lines[-1].endswith("…")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    said = capsys.readouterr().out
    assert caught.value.code == 0
    assert said.startswith(f"naspipe {__version__} (torch ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "invalid choice: 'trian' (did you mean train?) (choose from 'train'"),
        (["train", "nlp.c1", "--stagse", "2"], "arguments: --stagse (did you mean --stages?) 2;"),
        (["train", "nlp.c1", "--stagse=2"], "arguments: --stagse (did you mean --stages?)=2;"),
        (["log", "x", "--rows", "loses"], "'loses' (did you mean losses?) (choose"),
        (["log", "x", "--qqq"], "unrecognized arguments: --qqq; see naspipe --help"),
        (["qqq"], "invalid choice: 'qqq' (choose from"),
    ],
)
def test_unknown_words_are_told_what_is_near(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    output = capsys.readouterr().err
    assert said in output and output.count("\n") == 1


@pytest.mark.parametrize("layer", ["9.0", "0.7", "stem.0", "0", "1:head.1", "", "tail"])
def test_an_unknown_layer(run: str, layer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", run, "--layer", layer]) == 2
    assert "BLOCK.CANDIDATE with a block below 2 or one of stem, head" in capsys.readouterr().err


def test_a_layer_of_another_stream_was_not_used(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["log", run, "--layer", "1:0.1"]) == 0
    output = capsys.readouterr()
    assert output.out == "\n" and "no subnet" in output.err


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError("seed -1: expected more"), 2, "naspipe: seed -1: expected more\n"),
        (DataError("no file"), 2, "naspipe: no file\n"),
        (
            StageFailedError(1, "0.3F@1", "Traceback:\nOSError: x", "far"),
            1,
            "naspipe: stage 1 failed in 0.3F@1 on far: OSError: x\nTraceback:\nOSError: x\n",
        ),
        (LogError("damaged"), 1, "naspipe: damaged\n"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_become_exit_statuses(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    text: str,
) -> None:
    def fail(_: object) -> int:
        raise error

    module = ModuleType("command", "Fails.")
    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    module.run = fail  # type: ignore[attr-defined]
    monkeypatch.setattr(cli, "_load", lambda name: module)
    assert cli.main(["train"]) == status
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("words", [["frob"], ["--frob"], ["log", "x", "--frob"], ["compare", "x"]])
def test_what_argparse_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    output = capsys.readouterr()
    assert output.err.startswith("naspipe: ") and output.err.count("\n") == 1
    assert "; see naspipe " in output.err and output.out == ""


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "example" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([name, "--help"])
    assert caught.value.code == 0
    assert f"naspipe {name} runs/" in capsys.readouterr().out


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from naspipe.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "loaded = {name for name, module in sys.modules.items() if module}\n"
        "slow = {'torch', 'rich', 'zmq', 'numpy', 'sklearn'} & loaded\n"
        "sys.exit(f'imported {slow}' if slow else 0)"
    )
    subprocess.run([sys.executable, "-c", code, "--help"], check=True, capture_output=True)


@pytest.mark.parametrize("words", [("log",), ("data", "list")])
def test_a_reader_that_goes_away_is_no_traceback(run: str, words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            naspipe(*words, *([run] if words == ("log",) else [])),
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_module_runs(run: str) -> None:
    done = subprocess.run(
        naspipe("log", run, "--layer", "stem"), capture_output=True, check=True, text=True
    )
    assert done.stdout == "0F-1F-2F-3F\n"
