"""Teachers that come and go: processes beside the run compute the labels, or a file has them.

Who computes a label changes no bit. On other hosts it is ``naspipe teach``. Run it:
``python examples/elastic.py``
"""

from __future__ import annotations

from pathlib import Path

from digits_parts import Digits, space
from teachers import network
from torch import nn

import naspipe as npp


def main(run_dir="runs/elastic", steps=60, teachers=2):
    """Train with labels of processes and with labels of a file; returns their comparison."""
    data, place = npp.from_dataset(Digits(), batch_size=64), Path(run_dir)
    large = npp.train(
        npp.chain(network()), data, nn.CrossEntropyLoss(), optimizer="Adam", lr=0.003, steps=steps,
        run_dir=place / "teacher",
    )  # fmt: skip
    npp.write_labels(npp.Teacher(large), data, place / "labels", batches=steps)

    def taught(name, **how):
        loss = npp.losses.SoftTarget(temperature=4.0, weight=0.5)
        how |= {"teacher": npp.Teacher(large), "steps": steps, "run_dir": place / name}
        return npp.train(space(), data, loss, **how)

    runs = [
        taught("served", labels="service", teachers=teachers),
        taught("read", labels=f"file:{place / 'labels'}"),
    ]
    (comparison,) = npp.compare_runs([run.path for run in runs])
    return runs, comparison


if __name__ == "__main__":
    runs, comparison = main()
    print(f"labels of two processes, and of a file: {comparison}")
