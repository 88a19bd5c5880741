"""Bad input to ``naspipe train``: status 2, one line that helps, and nothing written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.data import images as digits
from naspipe.data import prepare
from naspipe.store.run_directory import RunDirectory
from tests.cli.refusals import DIGITS, LONG, MINE, MODULE, Refusal, expect
from tests.data.test_registry import write_fashion

Case = tuple[tuple[str, ...], tuple[str, ...]]

NAMES: list[Case] = [
    (("cv.c9", "--data", "digits"), ("search space 'cv.c9'", "expected one of cv.c3", "nlp.c0")),
    (("cv.c3", "--scale", "huge"), ("scale 'huge'", "expected one of", "tiny", "small", "paper")),
    ((*MINE, "--sampler", "magic"), ("sampler 'magic'", "expected one of uniform", "spaced:W")),
    ((*MINE, "--sampler", "random"), ("sampler 'random'", "(did you mean uniform?)")),
    ((*MINE, "--set", "warmup_steps=9999"), ("warmup_steps=9999: expected at most", "steps=")),
    ((*MINE, "--sampler", "spaced:x"), ("spaced:8", "found W = 'x'")),
    ((*MINE, "--policy", "sync"), ("policy: expected csp", "found 'sync'")),
    ((*MINE, "--order", "random"), ("order: expected paper", "found 'random'")),
    ((*MINE, "--device", "tpu"), ("device", "expected", "cpu", "found 'tpu'")),
    ((*MINE, "--stages", "0"), ("stages: expected 1 or more, found 0",)),
    ((*MINE, "--stages", "4"), ("4 stages for 3 blocks", "choose --stages 3 or less")),
    ((*DIGITS, "--stages", "35"), ("35 stages for 34 blocks", "choose --stages 34 or less")),
    ((*MINE, "--steps", "0"), ("steps: expected 1 or more, found 0",)),
    ((*MINE, "--seed", "-1"), ("seed: expected 0 or more, found -1",)),
    (("cv.c3", "--data", "digit"), ("data set 'digit'", "expected one of", "digits")),
]


@pytest.mark.parametrize(("words", "pieces"), NAMES)
def test_names_and_numbers(refused: Refusal, words: tuple[str, ...], pieces: tuple[str]) -> None:
    expect(refused(*words), *pieces)


OPTIMIZERS = "choose one of SGD, Adam, AdamW"
SETTINGS = [
    ("optimizer=LBFGS", "optimizer LBFGS does not work per layer: it needs", OPTIMIZERS),
    ("optimizer=SparseAdam", "does not work per layer: it takes sparse", OPTIMIZERS),
    ("optimizer=Muon", "does not work per layer: it takes two-dim", OPTIMIZERS),
    ("optimizer=AdmaW", "unknown optimizer 'AdmaW' (did you mean AdamW?)", "expected SGD, Adam"),
    ("optimizer=sgd", "did you mean SGD?"),
    ("optimizer.momentun=0.9", "SGD has no option 'momentun'", "expected momentum"),
    ("optimizer.lr=0.9", "SGD has no option 'lr'", "expected momentum"),
    ("optimizer.nesterov=true", "Nesterov momentum requires a momentum and zero dampening"),
    ("optimizer.momentum=-1", "momentum", "expected"),
    ("optimizer.momentum=abc", "momentum", "expected"),
    ("optimizer.momentum=null", "momentum", "expected"),
    ("optimizer.momentum=NaN", "momentum"),
    ("optimizer.nesterov=yes", "option nesterov: expected true or false, found 'yes'"),
    ("optimizer.foreach=maybe", "option foreach: expected true or false, found 'maybe'"),
    ("optimizer.differentiable=true", "differentiable=True has no meaning here", "leave it out"),
    ("lrr=0.1", "--set lrr: unknown key (did you mean lr?); docs/settings.md lists them all"),
    ("lr", "--set lr: expected key=value, as in --set lr=0.01"),
    ("lr=fast", "--set lr: expected a number, found 'fast'"),
    ("precision=fp8", "precision: expected float32 or bf16, found 'fp8'"),
    ("window=-1", "window: expected 0 or more, found -1"),
    (f"window={LONG}", "--set window: expected a whole number, found '999"),
    ("transport=udp", "transport: expected ipc or tcp, found 'udp'"),
    ("port=80", "port: expected 1024 to 65000, found 80"),
    ("rule.tail=exact", "space mine has no shared layer 'tail'", "expected stem, head"),
    ("rule.stem=late", "unknown rule 'late'", "expected exact, frozen, lag(K) or every(M)"),
    (f"rule.stem=lag({LONG})", "lag"),
]


@pytest.mark.parametrize(
    ("words", "pieces"),
    [(case[0], case[1:]) for case in SETTINGS],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_settings(refused: Refusal, words: str, pieces: tuple[str, ...]) -> None:
    expect(refused(*MINE, "--set", words), *pieces)


@pytest.mark.parametrize("betas", ["0.9", "[0.9]", "[0.9,0.9,0.9]", '["a",1]'])
def test_options_of_another_shape(refused: Refusal, betas: str) -> None:
    line = refused(*MINE, "--set", "optimizer=Adam", "--set", f"optimizer.betas={betas}")
    expect(line, "betas", "expected")


@pytest.mark.parametrize("seconds", ["inf", "1e16"])
def test_a_time_out_that_is_too_long(refused: Refusal, seconds: str) -> None:
    line = refused(*MINE, "--stages", "2", "--set", f"timeout_seconds={seconds}")
    expect(line, "timeout_seconds", "expected")


def test_more_threads_than_a_machine_can_have(place: Path) -> None:
    words = ["train", *MINE, "--run-dir", "run", "--set", "threads=1000000"]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "naspipe", *words],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and not (place / "run").exists(), done.stderr
    expect(done.stderr, "threads", "expected")


def test_a_number_that_is_none(refused: Refusal) -> None:
    expect(refused(*MINE, "--steps", "many"), "--steps", "'many'")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (json.dumps([0] * 31 + [12]) + "\n", ("s.jsonl:1, choice block 31", "0 to 11, found 12")),
        ("\n[0, 1\n", ("s.jsonl:2: expected one choice per choice block, as in", "found '[0, 1'")),
        ("[0, 1]\n" * 3, ("s.jsonl:1: expected 32 choices", "found 2")),
        (json.dumps([0] * 32) + "\n", ("s.jsonl holds 1 subnets", "3 steps", "add subnets")),
        ("", ("s.jsonl holds 0 subnets", "3 steps")),
        (None, ("s.jsonl: expected a subnet list, found No such file",)),
    ],
)
def test_streams_in_files(
    refused: Refusal, place: Path, text: str | None, pieces: tuple[str, ...]
) -> None:
    if text is not None:
        (place / "s.jsonl").write_text(text)
    expect(refused(*DIGITS, "--sampler", "file:s.jsonl"), *pieces)


def test_a_window_of_too_many_digits(refused: Refusal) -> None:
    expect(refused(*MINE, "--sampler", f"spaced:{LONG}"), "spaced")


def test_data_that_is_not_prepared(refused: Refusal) -> None:
    line = refused("cv.c3", "--data-dir", "none", "--no-prepare")
    expect(line, "'fashion-mnist' is not prepared in none", "naspipe data prepare fashion-mnist")


@pytest.mark.parametrize("damage", [lambda old: old[:-1], lambda old: b"x" + old[1:]])
@pytest.mark.parametrize("name", ["images", "record"])
def test_data_that_is_damaged(refused: Refusal, place: Path, name: str, damage: object) -> None:
    write_fashion(place / "package")
    root = place / "cache"
    prepare("fashion-mnist", root=root, source=place / "package")
    file = next(path for path in (root / "fashion-mnist").iterdir() if name in path.name)
    file.write_bytes(damage(file.read_bytes())[: -5 if name == "record" else None])  # type: ignore[operator]
    line = refused("cv.c3", "--data-dir", str(root))
    expect(line, file.name, f"naspipe data prepare fashion-mnist --data-dir {root} --force")


def test_digits_that_are_damaged(
    refused: Refusal, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "digits.csv.gz").write_bytes(b"junk")
    monkeypatch.setattr(digits, "_digits_file", lambda: place / "digits.csv.gz")
    expect(refused(*DIGITS), "digits.csv.gz: expected lines of whole numbers", "install")


@pytest.mark.parametrize("name", ["fairseq", "image-folder"])
def test_folders_that_hold_no_data(refused: Refusal, place: Path, name: str) -> None:
    space = "nlp.c3" if name == "fairseq" else "cv.c3"
    (place / "nothing").mkdir()
    refused(space, "--data", f"{name}:nothing")


def test_data_of_another_kind(refused: Refusal) -> None:
    line = refused("nlp.c3", "--data", f"{MODULE}:data")
    expect(line, "space nlp.c3", "vocabulary", "is missing")


def test_a_data_set_of_another_kind(refused: Refusal) -> None:
    expect(refused("nlp.c3", "--data", "digits"), "nlp.c3", "digits", "expected")


def test_a_run_directory_that_exists(refused: Refusal, place: Path) -> None:
    (place / "run").mkdir()
    (place / "run" / "losses.jsonl").write_text("mine\n")
    expect(refused(*MINE), "run directory run exists and is not empty", "--run-dir")


@pytest.mark.parametrize("run_dir", ["file", "file/run"])
def test_a_run_directory_that_cannot_be(refused: Refusal, place: Path, run_dir: str) -> None:
    (place / "file").write_text("x")
    expect(refused(*MINE, run_dir=run_dir), f"run directory {run_dir}")


def test_one_line_on_a_terminal_too(refused: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes stderr for a terminal
    expect(refused(*MINE, "--policy", "sync"), "found 'sync'")


def free_ports(count: int) -> int:
    """The first of some neighbouring ports that nobody listens on; each worker has its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    start = 21_000 + 2_500 * (worker % 4)
    for first in range(start, start + 2_500, 17):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, probe in enumerate(sockets, first):
                probe.bind(("127.0.0.1", number))
            return first
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise AssertionError("no free ports")


def test_a_temporary_directory_too_long_for_a_socket(
    refused: Refusal, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / ("x" * 90)))
    expect(refused(*MINE, "--stages", "2"), "too long for a socket's name", "set TMPDIR")


@pytest.mark.parametrize("which", [0, 2])
def test_a_port_in_use(refused: Refusal, which: int) -> None:
    port = free_ports(3)
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", port + which))
        taken.listen()
        tcp = ("--stages", "2", "--set", "transport=tcp", "--set", f"port={port}")
        line = refused(*MINE, *tcp)
    expect(
        line,
        f"port {port + which} is in use",
        f"{port} to {port + 2} of 127.0.0.1 free",
        "--set port=N",
    )


def test_tcp_leaves_the_bits_of_one_stage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--steps", "25", "--seed", "3", "--set", "optimizer.momentum=0.9", "--quiet")
    tcp = ("--stages", "2", "--set", "transport=tcp", "--set", f"port={free_ports(3)}")
    assert main(["train", *MINE, *more, "--run-dir", "one"]) == 0
    assert main(["train", *MINE, *more, *tcp, "--run-dir", "two"]) == 0
    assert capsys.readouterr() == ("one\ntwo\n", "")
    assert RunDirectory("two").read_manifest()["execution"]["transport"] == "tcp"
    assert main(["compare", "one", "two"]) == 0
    assert "IDENTICAL" in capsys.readouterr().out
