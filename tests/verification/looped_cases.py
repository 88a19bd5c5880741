"""Cases of scripts/compositions, trained by naspipe and by the plain loop of naspipe.verification.

The loop is given the workloads and taps that ``npp.train`` passes to a training. It runs in a
forked process, as it changes the modules that it is given.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from naspipe.api.training import Training
from naspipe.inputs.subnet_sources import draw_passes
from naspipe.store.run_directory import RunDirectory
from naspipe.streams.stream_file import read_stream
from naspipe.verification.plain_loop import PlainLoop
from scripts.compositions import plain, runs
from scripts.compositions.cases import Case

NOT_OF_THE_LOOP = ("run.labels", "run.teachers", "run.teacher_", "then.", "stop.")
"""Keys about the execution that would give the loop a teacher in another process."""


class CaughtError(Exception):
    """The training is there, and is not to run."""


def training_of(case: Case) -> Training:
    """What ``npp.train`` would run for a case."""
    case = {key: value for key, value in case.items() if not key.startswith(NOT_OF_THE_LOOP)}
    found = []

    def catch(training: Training) -> None:
        found.append(training)
        raise CaughtError

    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(Training, "run", catch)
        with suppress(CaughtError):
            runs._train(case, "run", Path(folder), runs.FIRST_PORT, is_resumed=False)
    return found[0]


def looped(case: Case, folder: Path) -> Mapping[str, str]:
    """Bits of losses and digests of tensors that the plain loop leaves, as ``runs._left`` has them.

    Args:
        case: whose run is in ``folder``.
        folder: the streams of subnets are read there.
    """
    training, places = training_of(case), runs._places(case)
    workloads = training.workloads
    subnets = []
    for number, workload in enumerate(workloads):
        if workload.is_trained:
            subnets.append(read_stream(RunDirectory(folder / "run" / places[number]).stream))
        else:
            subnets.append(subnets[0] if workload.follows else draw_passes(workload))
    loop = PlainLoop(workloads, training.taps, subnets)
    losses: dict[str, list[str]] = {place: [] for place in places}
    for _ in range(loop.steps):
        record = loop.step()
        for place, stream in zip(places, record.streams, strict=False):
            losses[place] += stream.losses
    found = {
        f"{place}loss/{number:04}": f"{int(bits, 16):x}"
        for place, own in losses.items()
        for number, bits in enumerate(own)
    }
    for number, label, name, value in loop.tensors():
        workload = workloads[number]
        if workload.is_trained or workload.follows:
            place = places[number] if workload.is_trained else "teacher/"
            found[f"{place}{label}/{name}"] = plain.digest_of(value)
    return found


def compared(case: Case, before: runs.Before | None = None) -> runs.Outcome:
    """Train a case both ways and compare every loss and every tensor.

    Args:
        case: see :mod:`scripts.compositions.cases`.
        before: done in the loop's process before it begins, such as a deliberate fault.
    """
    case = {key: value for key, value in case.items() if not key.startswith(("then.", "stop."))}
    with runs._folder() as folder:
        port = runs.FIRST_PORT + runs.PORTS * (id(case) % runs.SLOTS)
        for attempt in (
            partial(runs._train, case, "run", folder, port, is_resumed=False),
            partial(runs._left, case, folder),
        ):
            left = runs._apart(attempt, folder)
            if left.kind != runs.EQUAL:
                return left
        expected = runs._apart(partial(looped, case, folder), folder, before)
        if expected.kind != runs.EQUAL:
            return expected
        return runs._compared(left.more, expected.more)
