"""What Python shows of runs and searches while they go, and what an interrupted run says."""

from __future__ import annotations

import re
import signal

import pytest
import rich.console
import rich.jupyter
from torch import nn

import naspipe as npp
from naspipe.api.observers import Told
from naspipe.config.errors import RunInterruptedError
from naspipe.wire.ports import LaunchObserver
from naspipe.wire.reports import Observer
from tests.equivalence import spaces
from tests.faults.helpers import Calm, Ends, fail, interrupt, train

LINE = r"mixed on 1 stage  4/4  [\d.]+ steps/s  loss \d\.\d{4}(  bubble \S+)?  0:00:00 left\n"


class Counting(Observer):
    def __init__(self):
        self.losses = 0

    def on_loss(self, stream, sequence_id, loss):
        self.losses += 1


def short(path, **how):
    loss = nn.CrossEntropyLoss()
    return npp.train(spaces.mixed(), spaces.vectors, loss, steps=4, run_dir=path, **how)


def test_progress_is_that_of_the_command_line(tmp_path, capsys):
    short(tmp_path / "run")
    assert re.fullmatch(LINE, capsys.readouterr().err)
    short(tmp_path / "bar", settings={"window": 2}, progress=True)
    assert re.fullmatch(LINE, capsys.readouterr().err)


def test_a_bar_on_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "150")
    short(tmp_path / "run")
    said = capsys.readouterr()
    assert "4/4" in said.err and "steps/s  loss" in said.err and said.out == ""


def test_lines_in_a_notebook(tmp_path, capsys, monkeypatch):
    """Where ipywidgets are missing; rich hands the notebook what it prints."""
    shown = []
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    monkeypatch.setattr(rich.jupyter, "display", lambda segments, text: shown.append(text))
    monkeypatch.setattr("naspipe.api.progress.find_spec", lambda name: None)
    short(tmp_path / "run")
    assert re.fullmatch(LINE, "".join(shown))


def test_progress_is_switched_off(tmp_path, capsys):
    short(tmp_path / "run", progress=False)
    assert capsys.readouterr().err == ""


def test_an_observer_replaces_it_or_stands_beside_it(tmp_path, capsys):
    observer = Counting()
    short(tmp_path / "run", observer=observer)
    assert capsys.readouterr().err == "" and observer.losses == 4
    short(tmp_path / "both", observer=observer, progress=True)
    assert re.fullmatch(LINE, capsys.readouterr().err) and observer.losses == 8


def test_several_observers_are_told_everything():
    told = []

    class Telling:
        def __getattr__(self, name):
            return lambda *arguments: told.append((name, arguments))

    methods = [name for name in vars(LaunchObserver) if name.startswith("on_")]
    several = Told(Telling(), Telling())
    for name in methods:
        count = getattr(LaunchObserver, name).__code__.co_argcount - 1
        getattr(several, name)(*map(str, range(count)))
        assert told[-2:] == [(name, tuple(map(str, range(count))))] * 2
    assert len(told) == 2 * len(methods) >= 14


def test_a_search_shows_its_progress(tmp_path, capsys):
    run = short(tmp_path / "run", progress=False)
    how = {"held_out": spaces.vectors, "strategy": "random", "budget": 3, "validate": 1}
    for progress in (True, False):
        npp.search_subnets(run, spaces.vectors, nn.CrossEntropyLoss(), progress=progress, **how)
        said = capsys.readouterr().err
        title = f"search of {run.directory.path} by random on 1 held-out batch"
        lines = [rf"{title}  3/3  \S+ subnets/s  best loss .*\n"]
        lines.append(rf"{title}  verified: [12] scores?, 0 bits differ\n")
        assert re.fullmatch("".join(lines) if progress else "", said)


def test_an_interrupted_run_says_how_to_go_on_from_python(tmp_path, capsys):
    path = tmp_path / "run"
    with pytest.raises(RunInterruptedError) as ended:
        train(path, Ends(spaces.vectors, 9, interrupt, tmp_path / "marker"))
    assert "SIGINT: ending with a checkpoint, once the subnets" in capsys.readouterr().err
    said = f"; go on with the same call, with run_dir={str(path)!r} and resume=True"
    assert str(ended.value).endswith(said) and "naspipe train" not in str(ended.value)
    assert npp.open_run(path).manifest["failure"].endswith(said)
    assert train(path, Calm(spaces.vectors), resume=True).manifest["status"] == "complete"


@pytest.mark.parametrize("stages", [1, 2])
def test_a_second_signal_ends_at_once(tmp_path, stages):
    def interrupt_twice():
        interrupt()
        interrupt()

    path = tmp_path / "run"
    data = Ends(spaces.vectors, 9, interrupt_twice, tmp_path / "marker")
    with pytest.raises(KeyboardInterrupt) as ended:
        train(path, data, stages=stages)
    assert str(ended.value).startswith("ended at once by a second signal; go on with the same call")
    manifest = npp.open_run(path).manifest
    assert (manifest["status"], manifest["failure"]) == ("interrupted", str(ended.value))
    assert train(path, Calm(spaces.vectors), resume=True).manifest["status"] == "complete"


@pytest.mark.parametrize("stages", [1, 2])
def test_an_interrupt_in_the_last_subnets_is_not_lost(tmp_path, stages):
    """The run is complete, and what comes behind it in a script is not begun."""
    path = tmp_path / "run"
    data = Ends(spaces.vectors, 23, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError) as ended:
        train(path, data, stages=stages)
    said = f"interrupted by SIGINT, after its last subnet: {path} is complete"
    assert (str(ended.value), ended.value.signal_number) == (said, signal.SIGINT)
    assert npp.open_run(path).manifest["status"] == "complete"


def test_a_resume_without_a_checkpoint_says_that_it_begins_anew(tmp_path, capsys):
    path, how = tmp_path / "run", {"execution": {"checkpoint_every": 0}}
    with pytest.raises(npp.StageFailedError):
        train(path, Ends(spaces.vectors, 9, fail, tmp_path / "marker"), **how)
    train(path, Calm(spaces.vectors), resume=True, **how)
    assert f"{path}: no checkpoint is there yet: beginning at subnet 0" in capsys.readouterr().err


def test_held_out_data_that_nothing_looks_at(tmp_path, capsys):
    short(tmp_path / "run", held_out=spaces.vectors)
    assert "no held-out batch is looked at: validate_every=100 does" in capsys.readouterr().err
    short(tmp_path / "looked", held_out=spaces.vectors, validate_every=4)
    assert "held-out" not in capsys.readouterr().err
