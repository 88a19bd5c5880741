"""What cannot be distilled block by block: one line, exit status 2, and nothing is written.

The first table has a row for each kind of bad input. Each is tried from the command line, as a
user's module of students, and from Python.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.cli.main import main
from naspipe.data import open_data
from naspipe.inputs.named import find_workload
from tests.cli import bad_teachers
from tests.cli.own_students import students

BAD = "tests.cli.bad_teachers"
CUTS = (2, 4)


class ThreeOutputs:
    """Wants what the block before it makes, too."""

    fields = ()

    def distill(self, output, taught, before):
        return functional.mse_loss(output, taught + before)


class Tagged(nn.Module):
    """Called with a batch field, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(32)

    def forward(self, x: torch.Tensor, tag: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.conv(x)
        return found + tag.reshape(-1, 1, 1, 1)


class OtherField:
    fields = ("block-0",)

    def distill(self, output, taught, before):
        return functional.mse_loss(output, taught + before)


class Joined:
    fields = ()

    def joined(self, outputs, lessons):
        return functional.mse_loss(outputs[0], lessons[0])


def conv(maps: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, maps, 3, padding=1), nn.MaxPool2d(2))


MAKERS = [lambda: conv(32), lambda: conv(31)]
"""The second one makes 31 maps instead of 32."""


def with_second(student: Any) -> list[Any]:
    first, _, last = students()
    return [first, student, last]


ROWS = {
    # 1. shapes of a student and its teacher differ
    "other shape": (
        {"students": with_second(conv(31))},
        "student block 1 to have the shape of its teacher's, (8, 32, 2, 2), found (8, 31, 2, 2)",
    ),
    "other shape of a path": (
        {"students": with_second(npp.Space("two", [npp.Block(MAKERS)]))},
        "(8, 32, 2, 2), found (8, 31, 2, 2) of candidate 0.1",
    ),
    "a field that the batch does not have": (
        {"students": with_second(npp.Space("two", [npp.Block([Tagged], fields=["tag"])]))},
        "batch 0: expected a tensor called 'tag', found input, target",
    ),
    "a field that the block is not said to take": (
        {"students": with_second(npp.Space("two", [npp.Block([Tagged])]))},
        "expected student block 1 to take the output of the teacher's block before it, found "
        "TypeError: Tagged.forward() missing 1 required positional argument: 'tag'",
    ),
    "a field that the block does not take": (
        {"students": with_second(npp.Space("two", [npp.Block(MAKERS, fields=["target"])]))},
        "expected student block 1 to take the output of the teacher's block before it and the "
        "batch field target, found TypeError",
    ),
    "other shape of a mixed edge": (
        {"students": with_second(npp.mixed.student("edges", [MAKERS]))},
        "(8, 32, 2, 2), found (8, 31, 2, 2) of candidate 0.0/1",
    ),
    # 4. more workers than passes; a batch is never cut, see below
    "hybrid": (
        {"partition": "hybrid", "stages": 7, "passes": "accumulate:2"},
        "partition hybrid: expected at most 6 stages for 3 blocks and 2 passes a step, found 7",
    ),
    "shared": (
        {"partition": "shared", "stages": 3, "passes": "accumulate:2"},
        "partition shared: expected at most 2 stages, one for each pass of a step, found 3",
    ),
    "groups": (
        {"groups": 3, "passes": "accumulate:2"},
        "groups=3: expected a pass of every step for each group, found steps of 2",
    ),
    # 5. more stages than there are pieces
    "free": ({"stages": 7}, "partition: expected at most 6 stages, one for each piece, found 7"),
    "packed": ({"stages": 4, "partition": "packed"}, "expected at most 3 stages"),
    "pairs": ({"stages": 4, "partition": "pairs"}, "4 stages for 3 blocks"),
    "layers": ({"stages": 12, "partition": "layers"}, "12 stages for 11 blocks"),
    # 8. a cost term without a table of operations
    "cost term": (
        {"loss": npp.losses.CostTerm()},
        "student own: expected a table of operations and a reference for a loss with a cost term",
    ),
    "last cost term": (
        {"last_loss": npp.losses.CostTerm(nn.CrossEntropyLoss())},
        "student block-2: expected a table of operations and a reference",
    ),
    # 9. a loss that needs another block
    "three outputs": (
        {"loss": ThreeOutputs()},
        "expected the loss of block 0, ThreeOutputs, to be called with an output, the teacher's "
        "and its fields [], found TypeError",
    ),
    "other field": (
        {"loss": OtherField()},
        "batch 0: expected a tensor called 'block-0', found input, target",
    ),
    "other passes": (
        {"loss": Joined()},
        "a loss of block 0 that compares its output with the teacher's, distill(output, taught), "
        "found Joined, which needs the outputs of other passes",
    ),
    "hidden states": (
        {"last_loss": npp.losses.DistilBert()},
        "loss of block 2 that compares its output with the teacher's, distill(output, taught), "
        "found DistilBert, which needs what the block before it makes",
    ),
    "no lesson": ({"loss": nn.MSELoss()}, "a method distill(output, taught_output, target)"),
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "run"
    words = ["train", "vgg8", "--data", "digits", "--set", "data.batch_size=8", "--steps", "3"]
    assert main([*words, "--quiet", "--run-dir", str(path)]) == 0
    return path


def refused(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    assert main(["distill", *words, "--steps", "2", "--run-dir", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said.err
    assert not path.exists()
    return said.err


@pytest.mark.parametrize(("given", "text"), ROWS.values(), ids=ROWS)
def test_from_the_command_line(
    tmp_path: Path,
    teacher: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    text: str,
) -> None:
    module, settings = ModuleType("given_students"), {**given}
    module.students = settings.pop("students", students())
    module.loss, module.last_loss = settings.pop("loss", None), settings.pop("last_loss", None)
    monkeypatch.setitem(sys.modules, "given_students", module)
    words = [word for key, each in settings.items() for word in ("--set", f"{key}={each}")]
    cuts = ",".join(map(str, CUTS))
    own = [str(teacher), "given_students:students", "--cuts", cuts]
    assert text in refused(capsys, tmp_path / "run", *own, *words)


@pytest.mark.parametrize(("given", "text"), ROWS.values(), ids=ROWS)
def test_from_python(tmp_path: Path, teacher: Path, given: dict[str, Any], text: str) -> None:
    path, execution = tmp_path / "run", {**given}
    how: dict[str, Any] = {
        "students": execution.pop("students", students()),
        "recipe": {"passes": execution.pop("passes", "one")},
        **{key: execution.pop(key) for key in ("loss", "last_loss", "stages") if key in given},
    }
    with pytest.raises(npp.ConfigError) as caught:
        npp.distill_blockwise(
            blocks_of(teacher), data=open_data("digits", batch_size=8), steps=2, run_dir=path,
            execution=execution, **how,
        )  # fmt: skip
    assert text in str(caught.value) and "\n" not in str(caught.value)
    assert not path.exists()


def blocks_of(teacher: Path, **more: Any) -> list[nn.Module]:
    named = find_workload("vgg8", "tiny", "digits", None, {"batch_size": 8})
    return npp.Teacher(npp.Run(named.space, teacher), **more).blocks(CUTS)


def test_a_teacher_in_training_mode(teacher: Path) -> None:
    """2. Its batch statistics would move, forward by forward; there is no option for that."""
    with pytest.raises(npp.ConfigError, match=r"expected mode eval .* found mode train"):
        blocks_of(teacher, mode="train")
    blocks = [each.train() for each in blocks_of(teacher)]
    assert all(each.training for each in blocks)


TEACHERS = {
    # 7. a block that changes its input in place; and one that changes itself, as in 2
    "in_place": "block 1 of the teacher to leave its input as it is, as a student is called with",
    "counts": "block 1 of the teacher to stay as it is in evaluation mode, found that a forward "
              "changes parts.0.asked",
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), TEACHERS.items(), ids=TEACHERS)
def test_teachers_that_change_what_they_are_given_or_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    run, path, data = tmp_path / "teacher", tmp_path / "run", f"{BAD}:batches"
    words = ["train", f"{BAD}:{name}", "--data", data, "--steps", "2", "--quiet"]
    assert main([*words, "--run-dir", str(run)]) == 0
    capsys.readouterr()
    own = [str(run), f"{BAD}:students", "--cuts", "2"]
    assert text in refused(capsys, path, *own)
    blocks = npp.Teacher(npp.Run(getattr(bad_teachers, name), run)).blocks([2])
    with pytest.raises(npp.ConfigError) as caught:
        npp.distill_blockwise(
            blocks, bad_teachers.students, bad_teachers.batches, steps=2, run_dir=path
        )
    assert text in str(caught.value) and "\n" not in str(caught.value)
    assert not path.exists()


def test_a_teacher_s_file_of_another_network(
    tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """6. From Python, of weights for modules; or a run of another space."""
    out = tmp_path / "exported"
    assert main(["export", str(teacher), "--subnet", "last", "-o", str(out)]) == 0
    capsys.readouterr()
    data = ["--data", "digits", "--set", "data.batch_size=8"]
    for more, text in (
        (["--network", "vgg16"], "the layers of vgg16 at the scale tiny, 16, found 8"),
        (["--network", "vgg8", "--scale", "small"], "found layer 0 with tensors of (16, 1, 3, 3)"),
    ):
        line = refused(capsys, tmp_path / "run", str(out), "separable", *more, *data)
        assert text in line and "expected the layers of" in line
    with pytest.raises(npp.ConfigError, match="expected the weights of its modules in"):
        npp.Teacher([nn.Linear(3, 4)], weights=out / "model.safetensors")
    named = find_workload("vgg16", "tiny", "digits", None, {})
    with pytest.raises(npp.ConfigError, match="expected the weights of vgg16 in the run") as caught:
        npp.Teacher(npp.Run(named.space, teacher))
    assert "\n" not in str(caught.value)


def test_a_batch_is_never_cut(tmp_path: Path, teacher: Path) -> None:
    """3. A step of two passes takes two batches, whatever their size."""
    found = npp.distill_blockwise(
        blocks_of(teacher), students(), open_data("digits", batch_size=7), steps=1, stages=2,
        recipe={"passes": "accumulate:2"}, execution={"partition": "hybrid"},
        run_dir=tmp_path / "run",
    )  # fmt: skip
    assert len(found.blocks) == 3


def test_how_far_a_teacher_may_be_ahead(tmp_path: Path, teacher: Path) -> None:
    with pytest.raises(npp.ConfigError, match="window: expected 1 step or more, found 0"):
        npp.distill_blockwise(
            blocks_of(teacher), students(), open_data("digits", batch_size=8), steps=1, window=0,
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
