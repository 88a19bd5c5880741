"""Train steps of a finished run again in a plain loop, and compare them with what the run recorded.

The loss of each pass is compared with ``losses.jsonl``. Wherever a step ends at a checkpoint that
the run has kept, every parameter, buffer and optimizer state is compared with it. Nothing is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from naspipe.api.attempts import check_resumable
from naspipe.api.training import Training
from naspipe.api.verifying import longest_lag
from naspipe.checks.fingerprint import changed_code_note
from naspipe.config.errors import ConfigError
from naspipe.inputs.subnet_sources import draw_passes
from naspipe.jobs.workload import Workload, common
from naspipe.machine.forking import done_apart, in_own_thread
from naspipe.store.checkpoints import FINAL, Checkpoint, cut_name, read_checkpoint
from naspipe.store.losses import read_losses
from naspipe.store.run_directory import RunDirectory
from naspipe.streams.stream_file import read_stream
from naspipe.verification.plain_loop import PlainLoop, states_of, with_teachers
from naspipe.verification.records import NotVerifiable, tensor_digest
from naspipe.wire.reports import NotesToStderr

Choices = Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of comparing a finished run with a plain loop."""

    first: int
    """The first step that was compared."""
    steps: int
    """Number of steps that were compared and are equal."""
    losses: int
    """Number of equal losses."""
    checkpoints: int
    """Number of equal checkpoints; those of several streams are counted separately."""
    difference: str = ""
    """The first difference; empty if there is none."""
    because: str = ""
    """The reason why nothing could be compared; otherwise empty."""

    def __str__(self) -> str:
        if self.because:
            return f"verified: no, {self.because}"
        if self.difference:
            return self.difference
        last = self.first + self.steps - 1
        losses = f"{self.losses} loss{'es' * (self.losses != 1)}"
        checkpoints = f"{self.checkpoints} checkpoint{'s' * (self.checkpoints != 1)}"
        return f"verified: steps {self.first} to {last}, {losses} and {checkpoints}, 0 bits differ"


def verify_finished(
    training: Training, steps: int | None = None, checkpoint: str | None = None
) -> Compared:
    """Compare steps of the run in ``training.path`` with a plain loop.

    The plain loop runs in a forked process, because it changes the modules that it trains.

    Args:
        training: the definition of the run.
        steps: number of steps; by default the same number as for ``verify=auto``.
        checkpoint: the start: a step, as in ``"100"``, or the name of a checkpoint; by default step
            0.

    Raises:
        ConfigError: if the directory holds another run, or has no such checkpoint.
        LogError: if a file of the run is damaged.
        StageFailedError: if a module, the data or the loss raises an error.
    """
    for directory, workload in zip(training.directories, training.workloads, strict=False):
        if directory.manifest.exists():
            check_resumable(directory, workload.definition, None)
            if said := changed_code_note(directory, workload):
                training.observer.on_note(said)
    first = _first_step(training, checkpoint)
    longest = max(each.definition.steps for each in training.workloads)
    if steps is None:
        steps = max(4, longest_lag(training.workloads) + 3)
    steps = min(steps, longest - first)
    if steps < 1:
        raise ConfigError(f"expected steps after step {first}, found a run of {longest} steps")

    def work(go_on: Callable[[], None]) -> dict[str, Any]:
        threads = common(training.workloads).threads
        return in_own_thread(threads, lambda: _compare(training, first, steps, go_on))

    with ExitStack() as stack:
        for workload in training.workloads:
            for attendant in workload.attendants:
                stack.enter_context(attendant)
        path, last = training.path, first + steps - 1
        slow = f"training steps {first} to {last} of {path} again in a plain loop"
        say = partial(NotesToStderr().on_note, slow)
        return Compared(**done_apart(work, "verify", say=say))


def _first_step(training: Training, checkpoint: str | None) -> int:
    if checkpoint is None:
        return 0
    passes = common(training.workloads).steps.passes
    if checkpoint.isdecimal():
        checkpoint = cut_name(int(checkpoint) * passes)
    return _checkpoint(training.directories[0], checkpoint).subnets // passes


def _checkpoint(directory: RunDirectory, name: str) -> Checkpoint:
    path = directory.checkpoint(name)
    if not path.is_dir():
        folder = directory.checkpoints
        kept = [cut_name(cut) for cut in sorted(folder.cuts)]
        kept += [FINAL] if (folder.path / FINAL).is_dir() else []
        raise ConfigError(
            f"{directory.path}: expected a checkpoint of this run, found {name!r}; it has "
            f"{', '.join(kept) or 'none'}"
        )
    return read_checkpoint(path)


def _compare(
    training: Training, first: int, steps: int, go_on: Callable[[], None]
) -> dict[str, Any]:
    """Train the plain loop; return the fields of a :class:`Compared`."""
    found: dict[str, Any] = {"first": first, "steps": 0, "losses": 0, "checkpoints": 0}
    directories = training.directories
    workloads, taps = with_teachers(training.workloads, training.taps)
    passes = common(workloads).steps.passes
    try:
        subnets = [islice(each, first * passes, None) for each in _subnets(training, workloads)]
        loop = PlainLoop(workloads, taps, subnets, training.execution.hardware.device)
    except NotVerifiable as error:
        return {**found, "because": str(error)}
    trained = [number for number, each in enumerate(workloads) if each.is_trained]
    written = [number for number, each in enumerate(workloads) if each.is_written]
    end = (first + steps) * passes
    recorded = {
        number: [loss.bits for loss in read_losses(directories[number].losses, end)]
        for number in trained
    }
    if first:
        start = {n: _checkpoint(directories[n], cut_name(first * passes)) for n in written}
        loop.resume(
            first,
            [states_of(start[n], passes) if n in start else {} for n in range(len(workloads))],
        )
    for step in range(first, first + steps):
        go_on()
        record = loop.step()
        for number in trained:
            for place, bits in enumerate(record.streams[number].losses):
                expected = recorded[number][step * passes + place : step * passes + place + 1]
                if expected != [bits]:
                    what = f"pass {place} of step {step}" if passes > 1 else f"step {step}"
                    return {
                        **found,
                        "difference": f"{directories[number].path}: the loss of {what} differs: "
                        f"the plain loop has {bits}, the run {(expected or ['nothing'])[0]}",
                    }
                found["losses"] += 1
        for number in written:
            cut = (step + 1) * passes
            is_end = cut == workloads[number].definition.num_passes
            path = directories[number].checkpoints.path / (FINAL if is_end else cut_name(cut))
            if path.is_dir():
                checkpoint = read_checkpoint(path)
                if difference := _difference(loop, number, checkpoint):
                    where = f"{directories[number].path}, after step {step}"
                    return {**found, "difference": f"{where}: {difference}"}
                found["checkpoints"] += 1
        found["steps"] += 1
    return found


def _subnets(training: Training, workloads: Sequence[Workload]) -> list[Iterator[Choices]]:
    """Return the choices of every pass of each stream, as the run recorded or drew them."""
    own: list[list[Choices]] = []
    for directory, workload in zip(training.directories, workloads, strict=False):
        own.append(list(read_stream(directory.stream)) if workload.is_trained else [])
    own += [[] for _ in workloads[len(own) :]]
    found = []
    for number, workload in enumerate(workloads):
        choices = own[number]
        if not workload.is_trained:
            choices = own[0] if workload.follows is not None else list(draw_passes(workload))
        steps, left_out = workload.recipe.steps, workload.left_out
        kept = [None if steps.pass_of(y) in left_out else each for y, each in enumerate(choices)]
        found.append(iter(kept))
    return found


def _difference(loop: PlainLoop, number: int, checkpoint: Checkpoint) -> str:
    """Describe the first tensor of a stream that differs between the loop and a checkpoint."""
    plain = {
        f"{label}/{name}": tensor_digest(value)
        for stream, label, name, value in loop.tensors()
        if stream == number
    }
    run = {
        f"{label}/{name}": tensor_digest(value)
        for label, state in states_of(checkpoint, 1).items()
        for name, value in state.values.items()
    }
    for name in sorted(plain.keys() | run.keys()):
        if plain.get(name) != run.get(name):
            return (
                f"{name} differs: the plain loop has {plain.get(name, 'nothing')}, the checkpoint "
                f"{run.get(name, 'nothing')}"
            )
    return ""
