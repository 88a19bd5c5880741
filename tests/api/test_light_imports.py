"""What a start does not need is not imported: each of these takes a second or so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = (
    "torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "sympy", "matplotlib", "nni",
    "pandas", "scipy", "sklearn", "tensorboard", "onnx", "onnxruntime", "torchvision",
)  # fmt: skip

CODE = """
import json, sys
import naspipe
{more}
print(json.dumps(sorted(sys.modules)))
"""

SPACE = "naspipe.Space('s', [naspipe.Block([list])])"


def imported(more: str) -> set[str]:
    """What a fresh process has imported."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(more=more)], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("more", [SPACE, "naspipe.train; naspipe.Run", "import naspipe.cli.train"])
def test_nothing_heavy_is_imported(more: str) -> None:
    assert not imported(more) & set(HEAVY)


def test_one_stage_needs_neither_teachers_nor_nni() -> None:
    """Of small modules there are hundreds: a start takes a millisecond for each."""
    teachers = ("naspipe.distill.label_sources", "naspipe.distill.teacher_server")
    found = imported("naspipe.train")
    assert not [
        name
        for name in found
        if name.startswith((*teachers, "naspipe.label_scheduler", "naspipe.nni", "tabulate"))
    ]


def test_a_space_needs_no_torch() -> None:
    assert "torch" not in imported(SPACE)
