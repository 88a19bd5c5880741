"""Runs that are ended early, and what their resumes must leave."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

import naspipe
from naspipe.config.errors import RunInterruptedError
from naspipe.store.compare import compare_runs
from tests.equivalence import spaces

LOSS = torch.nn.CrossEntropyLoss()
MOMENTUM = {"momentum": 0.9, "weight_decay": 1e-4}
LAUNCHER = os.getpid()


class Ends:
    """Data whose batch of one subnet does something to the run, once, where it is read."""

    record = {"name": "tests"}  # noqa: RUF012

    def __init__(self, data, sequence_id, how, marker):
        self.data, self.sequence_id, self.how, self.marker = data, sequence_id, how, marker

    def __call__(self, seed, sequence_id):
        if sequence_id == self.sequence_id and self._is_first():
            self.how()
        return self.data(seed, sequence_id)

    def _is_first(self):
        """Several processes may read the batch at the same moment; one of them ends the run."""
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Calm:
    """The same data without an end."""

    record = Ends.record

    def __init__(self, data):
        self.data = data

    def __call__(self, seed, sequence_id):
        return self.data(seed, sequence_id)


def fail():
    """Fail, after what was captured before has been written."""
    time.sleep(0.3)
    raise RuntimeError("injected")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt():
    """Ask the launcher to end, as Ctrl-C does, and let it begin to."""
    os.kill(LAUNCHER, signal.SIGINT)
    time.sleep(1)


def train(path, data, *, space=None, steps=24, stages=1, resume=False, optimizer="SGD",
          options=None, lr=0.02, seed=1, execution=None, observer=None, recipe=None):  # fmt: skip
    if options is None and optimizer == "SGD":
        options = MOMENTUM
    return naspipe.train(
        space or spaces.mixed(), data, LOSS, steps=steps, seed=seed, optimizer=optimizer,
        optimizer_options=options, lr=lr, stages=stages, run_dir=path, resume=resume,
        execution={"checkpoint_every": 5, "window": 4, **(execution or {})}, observer=observer,
        recipe=recipe,
    )  # fmt: skip


def interrupt_and_resume(tmp_path, data, first, then, **kw):
    """Train until Ctrl-C at subnet 9, which leaves a checkpoint; go on otherwise."""
    path = tmp_path / "ended"
    with pytest.raises(RunInterruptedError, match="with a checkpoint at subnet"):
        train(path, Ends(data, 9, interrupt, tmp_path / "marker"), **kw, **first)
    run = train(path, Calm(data), resume=True, **kw, **then)
    assert run.manifest["life"]["generation"] == 1 and run.manifest["life"]["first"][0] >= 9
    return run


def assert_identical(one, other):
    (comparison,) = compare_runs([one.directory.path, other.directory.path])
    assert comparison.is_identical, str(comparison)
