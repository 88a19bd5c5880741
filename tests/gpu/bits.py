"""The bits of a run on one GPU against the plain loop on that GPU: ``python -m tests.gpu.bits``.

A program of its own, since a process that has used CUDA cannot fork stages: all runs come
first, then the plain loops. One JSON line for each case.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import nn

import naspipe as npp
from naspipe.frontend.given import run_plan as plan
from naspipe.runtime.measuring import profile_apart
from naspipe.streams.from_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, oracle_of

MOMENTUM = {"momentum": 0.9, "weight_decay": 1e-4}
LEAST = "0.001x"
"""Raised to the least budget that a stage can run with."""

CAP_BYTES = 448 << 20
"""Of the case that runs short of memory: its graphs take about twice that."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A space, its data and recipe, and how it is run."""

    space: npp.Space
    data: object
    loss: object = field(default_factory=nn.CrossEntropyLoss)
    steps: int = 16
    stages: tuple[int, ...] = (1, 2, 4)
    optimizer: str = "SGD"
    options: dict = field(default_factory=dict)
    lr: float = 0.02
    bf16: bool = False
    execution: dict = field(default_factory=dict)
    expects_retries: bool = False


class Hungry(nn.Module):
    """Keeps four times its input for its backward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return x + self.linear(torch.tanh(x).sin().cos()) * 0.1


def hungry():
    return npp.Space("hungry", [
        npp.Shared("stem", lambda: nn.Linear(64, 64), rule=npp.Lag(2)),
        *(npp.Block([Hungry, Hungry], kind="hungry") for _ in range(14)),
        npp.Shared("head", lambda: nn.Linear(64, 10)),
    ])  # fmt: skip


def capped_vectors(seed, sequence_id):
    """Big batches; a stage that asks for one is limited to :data:`CAP_BYTES` of GPU memory."""
    if torch.cuda.is_initialized():
        share = CAP_BYTES / torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(share)
    return spaces.vectors(seed, sequence_id, 64, 65536)


def cases(is_toy=False):
    """By name; the toy ones are for machines without a GPU."""
    mixed = partial(Case, space=spaces.mixed(), data=spaces.vectors, options=MOMENTUM)
    if is_toy:
        return {"mixed": mixed(steps=8, stages=(1, 2))}
    budget = {"partition": "balanced"}
    return {
        "mixed": mixed(steps=25),
        "mixed, bf16, adam": mixed(bf16=True, optimizer="Adam", options={}, lr=1e-3, stages=(2,)),
        "mixed, recompute": mixed(execution={"recompute": True}, stages=(1, 2)),
        "maps": Case(space=spaces.maps(), data=spaces.images, options=MOMENTUM, stages=(1, 2)),
        "memory": Case(space=spaces.memory(), data=spaces.sequences, options=MOMENTUM,
                       stages=(2,)),
        **{
            f"mixed, budget {text}": mixed(
                optimizer="Adam", options={}, lr=1e-3, stages=(1, 2),
                execution={**budget, "memory_budget": text},
            )
            for text in (LEAST, "1.5x", "3x")
        },
        "short of memory": Case(space=hungry(), data=capped_vectors, steps=3, stages=(1,),
                                expects_retries=True),
    }  # fmt: skip


def train(case, device, place):
    """One run for each number of stages."""
    return [
        npp.train(
            case.space, case.data, case.loss, steps=case.steps, seed=1, optimizer=case.optimizer,
            lr=case.lr, optimizer_options=case.options, stages=number,
            run_dir=place / f"{number}", recipe={"precision": "bf16"} if case.bf16 else None,
            execution={**case.execution, "device": device},
        )
        for number in case.stages
    ]  # fmt: skip


def compare(case, runs, device):
    """What differs between the runs and the plain loop; empty when every bit is the same."""
    oracle = oracle_of(
        case.space, 1, case.optimizer, case.lr, case.options, case.bf16,
        "cuda:0" if device == "cuda" else device,
    )  # fmt: skip
    data = spaces.vectors if case.data is capped_vectors else case.data
    sizes = (64, 65536) if case.data is capped_vectors else ()
    for y, choices in enumerate(read_stream(runs[0].directory.stream)):
        oracle.step(y, case.space.chain(choices), data(1, y, *sizes), case.loss)
    for run, number in zip(runs, case.stages, strict=True):
        try:
            assert_same_bits(run, oracle)
        except AssertionError as error:
            return f"on {number} stages: {error}"
    retries = sum(stage["memory_retries"] for stage in runs[0].manifest["measured"]["stages"])
    if case.expects_retries and not retries:
        return "memory was never short, so nothing was tried"
    return ""


def deterministic():
    """The settings that the plain loop needs, written out once more on purpose."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(1)


def short_profiles(root):
    """Profiles of these runs are short, and kept apart from the user's."""
    plan.cached_profile = partial(plan.cached_profile, root=root)
    profile_apart.profile = partial(profile_apart.profile, budget_seconds=0.5)


def check_cases(chosen, device, place, report):
    """Train every case, then compare every case; ``report(name, verdict, seconds)`` at each end."""
    short_profiles(place / "profiles")
    runs = {}
    for name, case in chosen.items():
        start = time.monotonic()
        try:
            runs[name] = train(case, device, place / name), time.monotonic() - start
        except npp.NaspipeError as error:
            report(name, f"the run failed: {error}", time.monotonic() - start)
    deterministic()
    for name, (made, seconds) in runs.items():
        report(name, compare(chosen[name], made, device) or "IDENTICAL", seconds)


def main():
    """Run the cases; one JSON line each, and exit status 0 whatever they say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true")
    arguments = parser.parse_args()

    def report(name, verdict, seconds):
        line = {"case": name, "verdict": verdict, "seconds": round(seconds, 1)}
        print(json.dumps(line), flush=True)

    with tempfile.TemporaryDirectory(prefix="naspipe-bits-") as scratch:
        check_cases(cases(arguments.toy), arguments.device, Path(scratch), report)


if __name__ == "__main__":
    main()
