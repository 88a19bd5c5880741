"""Cases that are cut and go on: on other stages and groups, from checkpoints, after a kill."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.store.run_directory import RunDirectory
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits
from tests.faults.helpers import LAUNCHER, Calm, Ends, kill
from tests.gpu.trained import LEAST, SEED, Case

SWAPPED = {"memory_budget": LEAST}


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A case that is ended where a batch is read, and goes on in another way."""

    case: Case
    first: dict
    """Stages and execution of the first life."""
    then: dict = field(default_factory=dict)
    """Of the second; empty where the run restarts by itself, after its first stage was killed."""
    at: int = 9

    def train(self, device, place):
        """Both lives."""
        marker = place / "marker"
        if not self.then:
            how = partial(kill_behind_a_checkpoint, RunDirectory(place / "run"))
            return self._live(Ends(self.case.data, self.at, how, marker), device, place)
        try:
            self._live(Ends(self.case.data, self.at, interrupt, marker), device, place)
        except RunInterruptedError as error:
            assert "with a checkpoint at subnet" in str(error), error
        else:
            raise AssertionError("it was not interrupted")
        return self._live(Calm(self.case.data), device, place, resume=True, **self.then)

    def _live(self, data, device, place, *, resume=False, **how):
        case, how = self.case, how or self.first
        execution = {"checkpoint_every": 4, "window": 4, **how.get("execution", {})}
        return npp.train(
            case.space, data, case.loss, steps=case.steps, seed=SEED, lr=case.lr, resume=resume,
            optimizer=case.optimizer, optimizer_options=case.options, recipe=case.recipe,
            stages=how["stages"], run_dir=place / "run", execution={**execution, "device": device},
        )  # fmt: skip

    def compare(self, run, device):
        """It has the bits of a loop that nothing ended."""
        life = run.manifest["life"]
        assert life["generation"] == 1 and life["first"][0] > 0, f"it did not go on: {life}"
        assert_same_bits(run, self.case.plain(run, device))


def interrupt():
    """Ask the launcher to end, and let it begin to; with what no shell has programs ignore."""
    os.kill(LAUNCHER, signal.SIGTERM)
    time.sleep(0.3)


def kill_behind_a_checkpoint(directory):
    """Kill the stage that reads the batch, as soon as there is something to go on from."""
    deadline = time.monotonic() + 20
    while not directory.checkpoints.cuts and time.monotonic() < deadline:
        time.sleep(0.05)
    kill()


def on(stages, **execution):
    """How one life is carried out."""
    return {"stages": stages, "execution": execution}


def resumes():
    """Every kind of optimizer state, older versions, and layers that were swapped out."""

    def optimized(name, **options):
        return Case(optimizer=name, options=options, lr=0.01, steps=20)

    old = spaces.mixed(front=npp.Frozen(), end=npp.Lag(7))
    ahead = spaces.mixed(front=npp.Lag(2, predicts=True))
    passes = Case(steps=10, recipe={"passes": "accumulate:4", "ema": 0.9})
    window = {"window": 8, "checkpoint_every": 2}
    return {
        "Adam, 2 stages to 1": Resumed(case=optimized("Adam"), first=on(2), then=on(1)),
        "Adagrad, 1 stage to 3": Resumed(case=optimized("Adagrad"), first=on(1), then=on(3)),
        "ASGD, 3 to 2, swapped": Resumed(
            case=optimized("ASGD"), first=on(3), then=on(2, **SWAPPED)
        ),
        "lag(7) and frozen, swapped, 2 to 3": Resumed(
            case=Case(space=old, steps=24), first=on(2, **SWAPPED), then=on(3)
        ),
        "lag(2,predict), 2 to 1": Resumed(
            case=Case(space=ahead, steps=20), first=on(2), then=on(1, recompute=True)
        ),
        "groups, 2 to 1, then stages": Resumed(
            case=passes, first=on(1, groups=2, **window), then=on(2, **window), at=17
        ),
        "a stage is killed": Resumed(
            case=optimized("NAdam"), first=on(2, max_restarts=1), at=13
        ),
    }  # fmt: skip
