"""One stage beside the plain loop, start-up included; writes artifacts/startup/plain_loop.json.

A small image supernet with a data set of its own, 200 steps: once as one writes it in plain torch
(a DataLoader, one optimizer, one loop), once by ``naspipe.train`` on one stage, with its checks,
records and checkpoint. Each run is a fresh process, and the two alternate; what is compared is the
whole process, by the clock and in processor time, which other work on the machine disturbs less.
Both train the same subnets, and use one thread of torch. The last losses are printed, as both have
to learn. Python keeps the byte code of what it imports, as it does by default, and a first run of
each is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from zlib import crc32

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from numpy.random import RandomState  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

KINDS = ("plain", "naspipe")
BLOCKS, WIDTH, SIZE, CLASSES, BATCH, SEED = 6, 16, 12, 10, 32, 1
OPTIONS: dict[str, Any] = {"momentum": 0.9, "weight_decay": 4e-5}
LOSS = nn.CrossEntropyLoss(label_smoothing=0.1)


class Images(Dataset[tuple[torch.Tensor, int]]):
    """A mean image of each class with noise, flipped at random."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self._means = torch.randn(CLASSES, 3, SIZE, SIZE, generator=generator)
        self._noise = torch.randn(2000, 3, SIZE, SIZE, generator=generator)

    def __len__(self) -> int:
        return len(self._noise)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        image = self._means[row % CLASSES] + self._noise[row]
        return image.flip(-1) if torch.rand(()) < 0.5 else image, row % CLASSES


class Inverted(nn.Module):
    """MobileNet's block with a kernel size."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        inner = 3 * WIDTH
        self.layers = nn.Sequential(
            nn.Conv2d(WIDTH, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, inner, kernel, padding=kernel // 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images of the same size."""
        return x + self.layers(x)  # type: ignore[no-any-return]


def stem() -> nn.Module:
    """From pixels to the blocks."""
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH))


def head() -> nn.Module:
    """From the blocks to classes."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES))


CHOICES = [*(lambda kernel=kernel: Inverted(kernel) for kernel in (3, 5, 7)), nn.Identity]


def plain(steps: int, _: Path) -> float:
    """The loop without naspipe; returns its last loss."""
    torch.manual_seed(SEED)
    first, last = stem(), head()
    blocks = nn.ModuleList(nn.ModuleList(make() for make in CHOICES) for _ in range(BLOCKS))
    network = nn.ModuleList([first, blocks, last]).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, **OPTIONS)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loader, done, loss = DataLoader(Images(), BATCH, shuffle=True), 0, torch.zeros(())
    draws = [RandomState([crc32(b"uniform"), block, SEED]) for block in range(BLOCKS)]
    while done < steps:
        for images, targets in loader:
            choices = [int(draw.random_sample() * len(CHOICES)) for draw in draws]
            x = first(images)
            for block, choice in zip(blocks, choices, strict=True):
                x = block[choice](x)  # type: ignore[index]
            loss = LOSS(last(x), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
            if done == steps:
                break
    return loss.item()


def piped(steps: int, scratch: Path) -> float:
    """The same by naspipe on one stage; returns its last loss."""
    import naspipe as npp

    choices = [npp.Block(CHOICES) for _ in range(BLOCKS)]
    space = npp.Space("images", [npp.Shared("stem", stem), *choices, npp.Shared("head", head)])
    run = npp.train(
        space, npp.from_dataset(Images(), batch_size=BATCH), LOSS, steps=steps, lr=0.05,
        optimizer_options=OPTIONS, schedule="cosine", seed=SEED, run_dir=scratch / "run",
    )  # fmt: skip
    return run.losses[-1]


def fresh(kind: str, steps: int) -> dict[str, float]:
    """Seconds of one run in a process of its own, by the clock and of the processor."""
    command = [sys.executable, __file__, "--one", kind, "--steps", str(steps)]
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "processor": busy, "loss": float(done.stdout.split()[-1])}


def main() -> None:
    """Measure pairs, print each and the medians, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/startup/plain_loop.json")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as scratch:
            run = plain if options.one == "plain" else piped
            print(run(options.steps, Path(scratch)))
        return
    pairs: list[dict[str, Any]] = []
    for kind in KINDS:
        fresh(kind, 2)
    for number in range(options.pairs):
        order = KINDS if number % 2 else KINDS[::-1]
        found: dict[str, Any] = {kind: fresh(kind, options.steps) for kind in order}
        for clock in ("wall", "processor"):
            found[f"{clock} ratio"] = found["naspipe"][clock] / found["plain"][clock]
        pairs.append({**found, "load": os.getloadavg()[0]})
        print(json.dumps(pairs[-1]), flush=True)
    ratios = {clock: [pair[f"{clock} ratio"] for pair in pairs] for clock in ("wall", "processor")}
    for clock, each in ratios.items():
        middle = statistics.median(each)
        print(f"one stage over the plain loop, {clock}: {middle:.3f}x", end=" ")
        print(f"({min(each):.3f} to {max(each):.3f})")
    from naspipe.machine.determinism import describe_environment

    medians = {clock: statistics.median(each) for clock, each in ratios.items()}
    record = {"environment": describe_environment(), "steps": options.steps, "median": medians}
    options.output.write_text(json.dumps({**record, "pairs": pairs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
