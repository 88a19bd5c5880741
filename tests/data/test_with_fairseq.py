"""Data that fairseq-preprocess wrote, read by fairseq itself and by naspipe: the same batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from naspipe.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(find_spec("fairseq") is None, reason="needs the extra fairseq")
def test_batches_are_those_of_fairseq(tmp_path):
    """In a process of its own: fairseq sets up logging and warns of much as it is imported."""
    script = Path(__file__).with_name("with_fairseq.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "64"], capture_output=True, text=True, timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for kind in ("mmap", "lazy"):
        assert len(found[kind]) == 5
        for row in found[kind]:
            assert row["differ"] == 0 and row["batches"][0] == row["batches"][1] > 5, row
    assert found["reused"]["differ"], "fairseq keeps batches; docs/records.md says so"
    words = ["train", "nlp.c3", "--data", f"fairseq:{tmp_path / 'mmap'}", "--steps", "2"]
    words += ["--set", "data.max_tokens=32", "--quiet", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 0
