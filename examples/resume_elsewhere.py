"""A run is interrupted on two stages and goes on on one: the bits are those of a run that was not.

Run it: ``python examples/resume_elsewhere.py``
"""

from __future__ import annotations

import signal
from pathlib import Path

from digits_parts import Digits, space
from torch import nn

import naspipe as npp


class CtrlC(npp.Observer):
    """Interrupts the run once so many losses are known, as a user would."""

    def __init__(self, losses):
        self.left = losses

    def on_loss(self, stream, sequence_id, loss):
        """Told of every step."""
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)


def train(run_dir, steps, **how):
    """One definition; ``how`` says how it is carried out, and changes no bit."""
    data, loss = npp.from_dataset(Digits(), batch_size=64), nn.CrossEntropyLoss()
    return npp.train(space(), data, loss, seed=1, steps=steps, run_dir=run_dir, **how)


def main(run_dir="runs/resumed", steps=100, stages=2):
    """Train with and without an interruption; returns where it was cut, and the comparison."""
    place, cut = Path(run_dir), 0
    try:
        train(place / "cut", steps, stages=stages, observer=CtrlC(steps // 3))
    except npp.RunInterruptedError as stopped:
        print(stopped)
        cut = len(npp.open_run(place / "cut", space()).losses)
    train(place / "cut", steps, stages=1, resume=True)
    train(place / "whole", steps, stages=1)
    (comparison,) = npp.compare_runs([place / "whole", place / "cut"])
    return cut, comparison


if __name__ == "__main__":
    cut, comparison = main()
    print(f"interrupted behind step {cut} on 2 stages, finished on 1: {comparison}")
