"""``naspipe distill``: a finished run's blocks teach students, also after a resume."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from torch import nn

import naspipe as npp
import search_spaces
from naspipe.cli.main import main
from naspipe.config.ids import AccessKind
from naspipe.data import open_data
from naspipe.inputs.named import find_workload
from naspipe.store.access_log import read_run_accesses
from naspipe.store.compare import compare_runs
from naspipe.store.run_directory import RunDirectory
from tests.cli.test_resume import wait_for
from tests.forked import Fork

OWN = "tests.cli.own_students"
SLOW = "tests.cli.slow_digits:batches"
TEACHER = ["train", "vgg8", "--data", "digits", "--set", "data.batch_size=8", "--quiet"]
BLOCKS = 6


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "run"
    assert main([*TEACHER, "--steps", "6", "--run-dir", str(path)]) == 0
    return path


def words(teacher: Path, path: Path, *more: str) -> list[str]:
    command = ["distill", str(teacher), "separable", "--steps", "8", "--seed", "3", "--quiet"]
    return [*command, "--run-dir", str(path), *more]


def assert_same(one: Path, other: Path, count: int = BLOCKS) -> None:
    for number in range(count):
        (found,) = compare_runs([one / f"block-{number}", other / f"block-{number}"])
        assert found.is_identical, str(found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main(words(teacher, path)) == 0
    return path


def test_it_is_verified(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(whole), "--steps", "all"]) == 0
    losses = BLOCKS * 8
    said = f"steps 0 to 7, {losses} losses and {BLOCKS} checkpoints, 0 bits differ"
    assert said in capsys.readouterr().out


def test_it_is_the_python_call(tmp_path: Path, teacher: Path, whole: Path) -> None:
    data = open_data("digits", batch_size=8)
    named = find_workload("vgg8", "tiny", "digits", None, {"batch_size": 8})
    blocks = npp.Teacher(npp.Run(named.space, teacher)).blocks(search_spaces.cuts("vgg8"))
    npp.distill_blockwise(
        blocks, search_spaces.students_of("vgg8", "separable", "tiny", data.info), data, steps=8,
        seed=3, recipe="blockwise-compress", run_dir=tmp_path / "run",
    )  # fmt: skip
    assert_same(whole, tmp_path / "run")


def test_what_it_says(
    tmp_path: Path, teacher: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Directories on stdout, and the next command on stderr; the other commands take them."""
    path = tmp_path / "run"
    shown = [word for word in words(teacher, path, "--stages", "2") if word != "--quiet"]
    assert main(shown) == 0
    said = capsys.readouterr()
    places = [str(path / f"block-{number}") for number in range(BLOCKS)]
    assert said.out.splitlines() == places
    *_, last = said.err.splitlines()
    assert last == f"next: naspipe report {' '.join(places)} -o {path / 'report.html'}"
    assert "separable on 2 stages  48/48" in said.err
    assert main(last.removeprefix("next: naspipe ").split()) == 0
    assert main(["compare", places[0], str(whole / "block-0")]) == 0
    assert main(["log", places[0], "--layer", "0.0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0F-0B-1F-1B-2F-2B")
    assert_same(whole, path)
    recorded = RunDirectory(path / "block-3").read_manifest()["source"]
    assert (recorded["command"], recorded["student"]) == ("distill", "separable")
    assert RunDirectory(path / "block-3").read_manifest()["requested"]["partition"] == "free"


def test_a_resume_on_other_stages(tmp_path: Path, teacher: Path) -> None:
    steps = ["--steps", "24", "--sampler", "fair", "--set", "lr=0.02", "--data", SLOW]
    assert main(words(teacher, tmp_path / "whole", *steps)) == 0
    path = tmp_path / "ended"
    how = ["--stages", "2", "--checkpoint-every", "5"]
    with Fork(main, words(teacher, path, *steps, *how)) as launcher:
        wait_for(path / "block-0" / "losses.jsonl", 8)
        launcher.signal(signal.SIGTERM)
        ended, said = launcher.join(30), launcher.said
    assert ended == 143, said
    assert said.endswith(f"; go on with: naspipe distill --resume {path}\n"), said
    assert main(["distill", "--resume", str(path), "--stages", "1", "--quiet"]) == 0
    assert_same(tmp_path / "whole", path)
    manifest = RunDirectory(path / "block-0").read_manifest()
    assert manifest["execution"]["checkpoint_every"] == 5
    assert manifest["definition"]["recipe"]["lr"] == 0.02


def test_ones_own_students_and_their_loss(tmp_path: Path, teacher: Path) -> None:
    for number, name in enumerate((f"{OWN}:students", f"{OWN}:listed")):
        command = ["distill", str(teacher), name, "--cuts", "2,4", "--steps", "3", "--quiet"]
        assert main([*command, "--run-dir", str(tmp_path / str(number))]) == 0
    assert len(list((tmp_path / "0").glob("block-*"))) == 3
    losses = [
        RunDirectory(tmp_path / "0" / f"block-{number}").read_manifest()["definition"]["loss"]
        for number in range(3)
    ]
    assert "Absolute" in losses[0] and "Absolute" in losses[1] and "CrossEntropy" in losses[2]


def test_an_exported_network_teaches(tmp_path: Path, teacher: Path, whole: Path) -> None:
    out = tmp_path / "exported"
    assert main(["export", str(teacher), "--subnet", "last", "-o", str(out)]) == 0
    more = ["--network", "vgg8", "--data", "digits", "--set", "data.batch_size=8"]
    assert main(words(out, tmp_path / "run", *more)) == 0
    assert_same(whole, tmp_path / "run")


def test_rules_and_settings_reach_the_blocks(tmp_path: Path, teacher: Path) -> None:
    more = ["--set", "rule.classifier=frozen", "--set", "optimizer.momentum=0.5", "--steps", "2"]
    more += ["--stages", "2", "--partition", "pairs"]
    assert main(words(teacher, tmp_path / "run", *more)) == 0
    manifests = [
        json.loads((tmp_path / "run" / f"block-{n}" / "manifest.json").read_text()) for n in (0, 5)
    ]
    assert manifests[0]["requested"]["partition"] == "pairs"
    rules = [each["definition"]["rules"] for each in manifests]
    assert rules == [{}, {"classifier": "frozen"}]
    assert manifests[0]["definition"]["recipe"]["optimizer_options"] == {"momentum": 0.5}


def lead(path: Path) -> int:
    """The most steps that the teacher's first block was ahead of its student's optimizer step."""
    taught, learned = (read_run_accesses(path / name) for name in ("teacher-0", "block-0"))
    ends = [access.end_ns for access in learned if access.kind is AccessKind.WRITE]
    return max(each.sequence_id - sum(end < each.start_ns for end in ends) for each in taught)


@pytest.mark.parametrize("stages", ["1", "2"])
@pytest.mark.parametrize(("setting", "most"), [("relay=barrier", 0), ("teacher_window=2", 3)])
def test_how_far_the_teacher_is_ahead(
    tmp_path: Path, teacher: Path, whole: Path, stages: str, setting: str, most: int
) -> None:
    """As many steps as its outputs wait where they are made, and where they are taken."""
    path = tmp_path / "run"
    assert main(words(teacher, path, "--stages", stages, "--set", setting)) == 0
    assert_same(whole, path)
    assert lead(path) <= most < lead(whole)


def test_each_student_with_a_teacher_of_its_own(tmp_path: Path, teacher: Path, whole: Path) -> None:
    """A resume goes on with the same relay; where blocks are follows from it."""
    path, more = tmp_path / "run", ["--stages", "2", "--set", "relay=apart"]
    assert main(words(teacher, path, *more)) == 0
    assert_same(whole, path)
    manifests = [RunDirectory(path / f"teacher-{n}").read_manifest() for n in (0, 5)]
    assert [len(each["space"]["labels"]) for each in manifests] == [1, BLOCKS]
    requested = manifests[0]["requested"]
    assert (requested["relay"], requested["partition"]) == ("apart", "packed")
    assert main(["distill", "--resume", str(path), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ([], "expected TEACHER and STUDENT, or --resume RUN"),
        (["TEACHER"], "expected TEACHER and STUDENT, or --resume RUN"),
        (["TEACHER", "separabel"], "unknown student 'separabel': expected one of separable"),
        (["TEACHER", "proxyless"], "expected a teacher of mobilenet-v2, found vgg8"),
        (["nowhere", "separable"], "nowhere is not a run directory"),
        (["TEACHER", "separable", "--scale", "small"], "student block 0 to have the shape"),
        (["TEACHER", "separable", "--cuts", "1,2"], "a student for each block of the teacher"),
        (["TEACHER", "separable", "--cuts", "1,x"], "--cuts: expected positions, as in 3,6,9"),
        (["TEACHER", "separable", "--cuts", "9"], "rising places from 1 to 7 to be cut at"),
        (["TEACHER", "separable", "--network", "vgg8"], "beside an exported network only"),
        (["TEACHER", "separable", "--validate-every", "2"], "--validate-every: expected none"),
        (
            ["TEACHER", "separable", "--set", "relay=apar"],
            "relay: expected decoupled or barrier or",
        ),
        (
            ["TEACHER", "separable", "--set", "relay=barrier", "--set", "teacher_window=2"],
            "teacher_window=2: expected none with relay=barrier",
        ),
        (["TEACHER", "separable", "--set", "teacher_window=-1"], "teacher_window: expected 0 or"),
        (["TEACHER", "separable", "--recipe", "byol"], "momentum: expected none"),
        (["TEACHER", "separable", "--recipe", "sandwich"], "passes other than sandwich:2"),
        (["TEACHER", "separable", "--set", "rule.head=exact"], "rule.head: expected a shared"),
        (["TEACHER", f"{OWN}:broken"], "found ValueError: no students today"),
        (["TEACHER", f"{OWN}:number"], "expected a list of spaces or modules"),
        (["TEACHER", f"{OWN}:mixed"], "found a list with str"),
        (["TEACHER", f"{OWN}:nobody"], "expected module:attribute, importable"),
        (["--resume", "nothing"], "nothing/block-0 is not a run directory"),
        (["TEACHER", "--resume", "WHOLE"], "TEACHER: expected nothing beside --resume"),
        (["--resume", "WHOLE", "--set", "relay=apart"], "relay=apart: expected decoupled, with"),
        (["--resume", "WHOLE", "--steps", "9"], "--steps: expected nothing beside --resume"),
        (["--resume", "WHOLE", "--set", "lr=1"], "--set: expected settings of execution only"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    teacher: Path,
    whole: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    text: str,
) -> None:
    known = {"TEACHER": str(teacher), "WHOLE": str(whole)}
    place = [] if "--resume" in command else ["--run-dir", str(tmp_path / "run")]
    assert main(["distill", *(known.get(word, word) for word in command), *place]) == 2
    said = capsys.readouterr().err
    assert text in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_others_have_no_blocks_to_relay_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    assert main([*TEACHER, "--steps", "6", "--set", "relay=apart", "--run-dir", str(path)]) == 2
    said = capsys.readouterr().err
    assert "relay=apart: expected blocks with teachers of their own" in said
    assert said.count("\n") == 1 and not path.exists()


def test_a_resume_is_the_same_command_s(
    tmp_path: Path, teacher: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", str(whole / "block-0")]) == 2
    assert "was started by `naspipe distill`" in capsys.readouterr().err
    assert main(["distill", "--resume", str(whole), "--quiet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == BLOCKS
    blocks = _modules(teacher)
    students = [npp.chain([each], name="s") for each in blocks]
    data = open_data("digits", batch_size=4)
    npp.distill_blockwise(blocks, students, data, steps=1, run_dir=tmp_path / "python")
    assert main(["distill", "--resume", str(tmp_path / "python")]) == 2
    assert "was not started by `naspipe distill`" in capsys.readouterr().err


def _modules(teacher: Path) -> list[nn.Module]:
    named = find_workload("vgg8", "tiny", "digits", None, {})
    return npp.Teacher(npp.Run(named.space, teacher)).blocks([4])


def test_its_network_is_exported(tmp_path: Path, whole: Path, capsys) -> None:
    """A run from the command line knows its students and data itself."""
    from naspipe.export.pytorch_form import load_pytorch

    spaces = [
        RunDirectory(whole / f"block-{number}").read_manifest()["space"] for number in range(BLOCKS)
    ]
    counts = [each["shared"].count(False) for each in spaces]
    text = ";".join(",".join("0" * count) for count in counts)
    out = tmp_path / "out"
    assert main(["export", str(whole), "--subnet", text, "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    batch = open_data("digits", batch_size=8)(3, 0)
    assert load_pytorch(out)(batch["input"]).shape == (8, 10)
    assert main(["export", str(whole), "--subnet", "best", "-o", str(tmp_path / "best")]) == 2
    assert "expected a finished search, found none" in capsys.readouterr().err
