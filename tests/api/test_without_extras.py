"""Without any extra everything else works, and asking for one names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CODE = """
import sys
for name in ("nni", "tensorboard", "fairseq", "onnx", "onnxruntime", "sacrebleu", "matplotlib"):
    sys.modules[name] = None
import naspipe as npp
from torch import nn
from tests.equivalence.spaces import mixed, vectors

def asked(thing, *arguments, **more):
    try:
        thing(*arguments, **more)
    except npp.ConfigError as error:
        print(error)

space, loss = mixed(), nn.CrossEntropyLoss()
what = dict(steps=3, seed=1)
run = npp.train(space, vectors, loss, run_dir="run", recipe="spos", **what)
npp.train(space, vectors, loss, run_dir="grown", sampler="evolution", **what)
search = npp.search_subnets(run, vectors, loss, held_out=vectors, strategy="random", budget=2)
asked(npp.from_nni, object())
asked(npp.train, space, vectors, loss, run_dir="no", sampler="nni:TPE", **what)
asked(npp.search_subnets, run, vectors, loss, held_out=vectors, strategy="nni:TPE", budget=2)
asked(npp.train, space, vectors, loss, run_dir="no", execution={"tensorboard": True}, **what)
"""


def test_every_extra_is_hidden(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    extras = ["nni", "nni", "nni", "tensorboard"]
    for line, extra in zip(lines, extras, strict=True):
        assert f"pip install 'naspipe[{extra}]'" in line
    assert (tmp_path / "grown").is_dir() and not (tmp_path / "no").exists()
