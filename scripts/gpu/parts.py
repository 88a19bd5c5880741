"""The parts of the check on a GPU: what each looks at, and how long it may take. Needs no torch."""

from __future__ import annotations

from typing import NamedTuple

PIECE_SECONDS = 540
"""Of parts that are run by one command, at most; starting them takes some more."""


class Part(NamedTuple):
    """One process of the check."""

    checks: str
    seconds: int
    """At most; what was found by then is kept."""


PARTS = {
    "tests": Part("the tests marked gpu: devices, copies, draws, clocks", 90),
    "stages": Part("bits on 1, 2 and 4 stages on one GPU; views at offsets, bf16, recompute", 115),
    "ipc": Part("inputs from stage to stage through memory of the GPU (CUDA IPC)", 110),
    "resume": Part("cut or killed, from a checkpoint, on other stages, groups and budgets", 115),
    "optimizers": Part("every optimizer but LARS, Adagrad first; swapped; layers read late", 100),
    "budgets": Part("bits under memory budgets, and where memory runs short", 100),
    "judging": Part("validation beside the training, and searches", 110),
    "groups": Part("passes of a step on 2 groups, norms ordered and deferred", 110),
    "teachers": Part("teachers that are frozen or follow, and blockwise distillation", 115),
    "bits": Part("bits of real spaces on 1, 2 and 4 stages, on random data", 115),
    "verify": Part("runs of real spaces that compare every step with their plain loop", 60),
    "split": Part("split backwards: bits beside a plain loop, and what both parts take", 90),
    "swap": Part("speed with a budget over that without", 80),
    "plain": Part("speed of one stage over a plain loop", 110),
    "copies": Part("bytes per second of copies, pinned and pageable", 20),
    "paper": Part(
        "nlp.c1 at paper scale: a plain loop, one stage, and a budget of three subnets", 180
    ),
}
"""In the order that they are run in."""


def pieces() -> list[list[str]]:
    """The parts in their order, as many in a row as one command of below ten minutes can run."""
    found: list[list[str]] = [[]]
    for name, part in PARTS.items():
        if part.seconds + sum(PARTS[each].seconds for each in found[-1]) > PIECE_SECONDS:
            found.append([])
        found[-1].append(name)
    return found


def epilog() -> str:
    """What ``--help`` says of the parts."""
    wide = max(map(len, PARTS))
    rows = [f"  {name:{wide}}  {part.seconds:3} s  {part.checks}" for name, part in PARTS.items()]
    calls = [f"  scripts/gpu_check.sh --parts {' '.join(names)}" for names in pieces()]
    lines = [
        "parts, and the seconds that each may take:", *rows, "",
        "in pieces, each below ten minutes:", *calls, "",
        "packages for a machine that reaches no registry, fetched on another one:",
        "  scripts/gpu_check.sh --make-wheels 3.12     # fills wheels/; carry it along",
    ]  # fmt: skip
    return "\n".join(lines)
