"""An accelerator that torch sees and that computes nothing, for machines without one.

    python -m tests.accelerator trains DIRECTORY

As on a workstation with a GPU, a process beside it that computes a backward spoils that of every
process forked from it. Each use is a process of its own: it cannot be hidden again. It stands on
functions that torch does not promise to keep.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils import backend_registration

from naspipe.checks.optimizer import check_optimizer
from naspipe.checks.sketched import measure_sizes
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.jobs.workload import Workload
from naspipe.worker.layers.optimizers import PER_LAYER
from tests.worker.small_parts import batches, space

NAME = "standin"


def show(on_ask: Callable[[], None] = lambda: None) -> list[int]:
    """Have torch see it; returns who asked whether it is there: a process for each time."""
    asked: list[int] = []

    class Module(backend_registration._DummyBackendModule):
        def is_available(self) -> bool:
            asked.append(os.getpid())
            on_ask()
            return True

    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == NAME
    asked.clear()
    return asked


def back() -> None:
    torch.ones(1, requires_grad=True).sum().backward()


def one(recipe: Recipe) -> Workload:
    loss = torch.nn.CrossEntropyLoss()
    return Workload.of(space(), batches, loss, recipe=recipe, seed=1, steps=6, sampler="uniform")


def train(run_dir: Path, stages: int, optimizer: str = "Adam", **execution: str) -> list[float]:
    import naspipe as npp

    run = npp.train(
        space(), batches, torch.nn.CrossEntropyLoss(), optimizer=optimizer, stages=stages,
        execution=execution, seed=1, steps=6, sampler="uniform", run_dir=run_dir,
    )  # fmt: skip
    return run.losses


def spoils(_: Path) -> None:
    """A backward here spoils one in a forked process: what all of this is about."""
    show()
    back()
    child = os.fork()
    if not child:
        try:
            back()
        except RuntimeError as error:
            os._exit(1 if "Unable to handle autograd's threading" in str(error) else 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def asks(_: Path) -> None:
    """Adam's step asks for it, which starts a GPU."""
    asked = show()
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    torch.optim.Adam([weight]).step()
    assert asked == [os.getpid()]


def checks(_: Path) -> None:
    """Every optimizer is tried and measured, and nothing was asked or computed here."""
    asked = show()
    for name in PER_LAYER:
        recipe = Recipe(optimizer=name)
        check_optimizer(recipe)
        assert measure_sizes(one(recipe)).of(0, 0).state_bytes
    try:
        check_optimizer(Recipe(optimizer="Adam", optimizer_options={"betas": 3}))
    except ConfigError as error:
        assert "optimizer Adam: expected options" in str(error)
    else:
        raise AssertionError("betas=3 was accepted")
    assert asked == []


def trains(scratch: Path) -> None:
    """One stage, then two, then one, with and without a budget: same bits, nothing asked here."""
    asked = show()
    ways = [(1, {}), (2, {}), (1, {"memory_budget": "1x"}), (2, {"memory_budget": "2x"}), (1, {})]
    losses = [
        train(scratch / str(number), stages, **how) for number, (stages, how) in enumerate(ways)
    ]
    assert all(each == losses[0] for each in losses), losses
    assert asked == []


def trains_all(scratch: Path) -> None:
    """The same with every optimizer: one stage without a budget, two stages with one."""
    asked = show()
    for name in PER_LAYER:
        one_stage = train(scratch / name, 1, name)
        budget = train(scratch / f"{name}-budget", 2, name, memory_budget="2x")
        assert one_stage == budget, (name, one_stage, budget)
        assert asked == [], name
        print(f"{name}: {len(one_stage)} losses the same, nothing asked", flush=True)


def refuses(scratch: Path) -> None:
    """A user's own backward is found before anything is written."""
    show()
    back()
    for stages in (1, 2):
        try:
            train(scratch / "run", stages)
        except ConfigError as error:
            assert "has computed a backward already" in str(error), error
            assert "\n" not in str(error)
        else:
            raise AssertionError("it was not found")
        assert not (scratch / "run").exists()


ACTS: dict[str, Callable[[Path], None]] = {
    act.__name__: act for act in (spoils, asks, checks, trains, refuses)
}

LONG: dict[str, Callable[[Path], None]] = {trains_all.__name__: trains_all}
"""By hand only: half a minute."""

if __name__ == "__main__":
    (ACTS | LONG)[sys.argv[1]](Path(sys.argv[2]))
