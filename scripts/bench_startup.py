"""What passes from a command's start to the first loss; writes artifacts/startup/real.json.

Ten blocks of three small candidates each, dense and convolutional, on 1 and 2 stages, each time in
a fresh process. With 2 stages the layers are profiled: once with an empty cache of profiles
(``fresh``), once with what that left. Beside them stands the plain loop that a user would write:
torch, its optimizer, one step. Figures are medians. Needs a quiet machine with two free cores.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

BEGIN = time.perf_counter()
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

PARTS = {
    "optimizer": ("naspipe.api.start_state", "check_optimizer"),
    "shapes": ("naspipe.api.training", "check_spaces"),
    "profile": ("naspipe.api.training", "planning_costs"),
    "plan": ("naspipe.api.training", "make_plan"),
}
"""Functions whose time is told apart, where their callers find them."""


def main() -> None:
    """Measure each in turn, several times; print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/startup/real.json")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "STAGES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]))))
        return
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for kind in ("dense", "conv"):
            found.setdefault(f"{kind}, plain loop", []).append(fresh(kind, 0))
            found.setdefault(f"{kind}, 1 stage", []).append(fresh(kind, 1))
            with tempfile.TemporaryDirectory() as cache:
                found.setdefault(f"{kind}, 2 stages, fresh", []).append(fresh(kind, 2, cache))
                found.setdefault(f"{kind}, 2 stages", []).append(fresh(kind, 2, cache))
    rows = {
        name: {part: median(e[part] for e in each) for part in each[0]}
        for name, each in found.items()
    }
    for name, row in rows.items():
        print(f"{name:26}", *(f"{part} {seconds:.2f}" for part, seconds in row.items()))
    from naspipe.machine.determinism import describe_environment

    record = {"environment": describe_environment(), "rounds": options.rounds, "seconds": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({**record, "each": found}, indent=1) + "\n")


def fresh(kind: str, stages: int, cache: str = "") -> dict[str, float]:
    """One start in a process of its own."""
    command = [sys.executable, __file__, "--one", kind, str(stages)]
    environment = {**os.environ, **({"XDG_CACHE_HOME": cache} if cache else {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # byte code is kept, as it is by default
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    whole = time.perf_counter() - begin
    parts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**parts, "process": whole}


def one(kind: str, stages: int) -> dict[str, float]:
    """Seconds of every part; ``first loss`` counts from this process's first line on."""
    import torch

    seconds = {"torch": time.perf_counter() - BEGIN}
    torch.set_num_threads(1)
    factories = [[_factory(kind, name) for name in ("ReLU", "GELU", "Tanh")] for _ in range(10)]
    if not stages:
        _plain([each[0]() for each in factories] + [_head(kind)], kind)
        return {**seconds, "first loss": time.perf_counter() - BEGIN}
    before = time.perf_counter()
    import naspipe
    from naspipe.wire.reports import Observer

    class Clock(Observer):
        """Looks at the clock when the first loss comes."""

        def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
            """A step's loss is known."""
            seconds.setdefault("first loss", time.perf_counter() - BEGIN)

    train = naspipe.train
    seconds["naspipe"] = time.perf_counter() - before
    for name, (module, function) in PARTS.items():
        _watch(seconds, name, module, function)
    blocks = [*map(naspipe.Block, factories), naspipe.Shared("head", lambda: _head(kind))]
    with tempfile.TemporaryDirectory() as scratch:
        train(
            naspipe.Space(f"ten-{kind}", blocks), lambda seed, y: _batch(kind, seed, y),
            torch.nn.CrossEntropyLoss(), steps=4, stages=stages, run_dir=Path(scratch) / "run",
            observer=Clock(),
        )  # fmt: skip
    return seconds


def _watch(seconds: dict[str, float], part: str, module: str, name: str) -> None:
    """Take the time of a function's first call."""
    found = importlib.import_module(module)
    function = getattr(found, name)

    def watched(*given: Any, **named: Any) -> Any:
        before = time.perf_counter()
        result = function(*given, **named)
        seconds.setdefault(part, time.perf_counter() - before)
        return result

    setattr(found, name, watched)


def _factory(kind: str, activation: str) -> Callable[[], Any]:
    from torch import nn

    act = getattr(nn, activation)
    if kind == "dense":
        return lambda: nn.Sequential(nn.Linear(64, 64), act())
    return lambda: nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), act())


def _head(kind: str) -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64 if kind == "dense" else 16 * 16 * 16, 10))


def _batch(kind: str, seed: int, number: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    shape = (64,) if kind == "dense" else (16, 16, 16)
    images = torch.randn(32, *shape, generator=generator)
    return {"input": images, "target": torch.randint(10, (32,), generator=generator)}


def _plain(modules: list[Any], kind: str) -> None:
    """One step of a loop without naspipe."""
    import torch

    network, batch = torch.nn.Sequential(*modules), _batch(kind, 0, 0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    loss = torch.nn.functional.cross_entropy(network(batch["input"]), batch["target"])
    loss.backward()
    optimizer.step()


if __name__ == "__main__":
    main()
