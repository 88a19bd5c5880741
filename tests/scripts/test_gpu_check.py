"""The check on a GPU, as far as a machine without one can run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
import torch

from scripts.gpu.carried import NEEDED

ROOT = Path(__file__).parent.parent.parent


def check(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/gpu_check.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    done = check("--output", str(tmp_path / "gpu"))
    assert done.returncode == 3, done.stderr
    assert "skipped: torch finds no CUDA device" in done.stdout
    assert not list((tmp_path / "gpu").iterdir())


def test_the_emulated_device_is_for_dry_runs_only(tmp_path):
    done = check("--output", str(tmp_path), "--device", "cpu")
    assert done.returncode == 2
    assert "expected --dry-run with it" in done.stderr


def test_a_dry_run_of_one_part_writes_its_results(tmp_path):
    done = check("--output", str(tmp_path), "--device", "cpu", "--dry-run", "--parts", "copies")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "copies.json").read_text())
    assert record["is_good"] and record["is_dry_run"] and not record["was_cut_off"]
    assert record["pageable_save_bytes_per_second"] > 0
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["torch"] == torch.__version__


def test_a_part_that_takes_too_long_is_cut_off_and_leaves_what_it_wrote(tmp_path):
    start = time.monotonic()
    words = ("--device", "cpu", "--dry-run", "--parts", "copies", "--factor", "0.001")
    done = check("--output", str(tmp_path), *words)
    assert done.returncode == 1
    assert time.monotonic() - start < 30
    assert json.loads((tmp_path / "copies.json").read_text())["was_cut_off"]


def test_missing_packages_are_one_line(tmp_path):
    words = ("-I", "-S", str(ROOT / "scripts/gpu_check.py"), "--wheels", str(tmp_path))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "this python lacks torch" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("gpu_check: expected wheels of torch")


def test_its_parts_need_only_the_listed_packages():
    """On a bare machine there is nothing else: what naspipe's other users install is not there."""
    required = [re.match(r"[\w.-]+", each)[0] for each in requires("naspipe")]
    listed = {"naspipe", *NEEDED.values()}
    modules = {name for name, owners in packages_distributions().items() for each in owners
               if each in required and each not in listed}  # fmt: skip
    assert "subword_nmt" in modules
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in sorted(modules))
    code = f"import sys\n{blocked}import scripts.gpu.part, tests.gpu.bits, tests.gpu.test_bits\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}{NAMED}"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


NAMED = """
from scripts.gpu.runs import synthetic
for name in ("nlp.c3", "cv.c3"):
    assert synthetic(name, "tiny").space
"""
