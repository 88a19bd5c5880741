"""Attempts of a run: each resumes from the newest checkpoints, until one completes the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from naspipe.api.verifying import verifier_of
from naspipe.checks.data import check_cut_batch
from naspipe.config.definition import Definition
from naspipe.config.errors import (
    ConfigError,
    ObserverError,
    RunInterruptedError,
    StageFailedError,
    StorageError,
    TransportError,
)
from naspipe.config.ids import SequenceId, StreamId
from naspipe.launch.hosts import OtherHosts
from naspipe.launch.launcher import Launched, launch
from naspipe.store.access_order import (
    RECORDED_STEPS,
    RecordedSpans,
    as_listed,
    continued,
    is_complete,
    recorded_spans,
)
from naspipe.store.compare import differing
from naspipe.store.files import named_storage
from naspipe.store.losses import check_losses
from naspipe.store.run_directory import RunDirectory, reserve, write_last
from naspipe.store.teacher_events import first_in_doubt, settle
from naspipe.streams.stream_file import read_stream
from naspipe.verification.verifier import Verified
from naspipe.wire.ports import RunObserver
from naspipe.worker.checkpoints.restored import Restored
from naspipe.worker.job import StreamJob, TrainingJob


@dataclass(slots=True)
class Generations:
    """Carries out a job and restarts it as often as necessary and allowed.

    ``manifests`` hold everything except the entries that the attempts record themselves. ``path``
    is what the user names to resume, and ``generation`` is the number of the next attempt.
    """

    job: TrainingJob
    manifests: Sequence[Mapping[str, Any]]
    observer: RunObserver
    path: Path
    generation: int = 0
    others: OtherHosts | None = None
    verified: Verified | None = None
    """The result of verifying the last attempt; None if verification was off."""
    recorded: list[RecordedSpans] = field(init=False)
    """The steps that the access log of each stream holds."""

    def __post_init__(self) -> None:
        streams = self.job.streams
        self.recorded = [recorded_spans(each.directory.read_manifest()) for each in streams]

    def run(self) -> Launched:
        """Run attempts until the run is complete; return the outcome of the last attempt.

        Raises:
            StageFailedError, TransportError: if the last allowed attempt failed.
            RunInterruptedError: if the run was asked to stop.
            LogError: if no checkpoint is intact, or the losses that belong to it are damaged.
            StorageError: if a file cannot be written.
        """
        left = self.job.execution.watch.max_restarts
        storage = self.job.streams[0].directory.path
        sources = [manifest.get("source") or {} for manifest in self.manifests]
        hint = how_to_go_on(sources, self.path)
        while True:
            try:
                with named_storage(storage):
                    self._resume()
            except StorageError as error:
                self.note("failed", error)
                raise
            try:
                with named_storage(storage):
                    firsts = [stream.first for stream in self.job.streams]
                    self.observer.on_begin(self.job.generation, firsts)
                    verifier = verifier_of(self.job)
                    until = verifier.end if verifier else 0
                    self.job = replace(self.job, verified_until=until)
                    if verifier is None:
                        return launch(self.job, self.observer, self.others)
                    with verifier:
                        launched = launch(self.job, self.observer, self.others, verifier)
                    self.verified = verifier.result
                    return launched
            except (StageFailedError, TransportError) as error:
                if left == 0:
                    if self.job.is_causal and "\n" not in str(error):  # no code to fix
                        error.args = (f"{error}; {hint}",)
                    self.note("failed", error)
                    raise
                left -= 1
                said = (str(error).splitlines() or [type(error).__name__])[0]
                where = " and ".join(str(stream.directory.path) for stream in self.job.streams)
                self.observer.on_note(f"{said}; going on from {where} ({left} left)")
            except (RunInterruptedError, ObserverError) as error:
                error.args = (f"{error}; {hint}",)
                self.note("interrupted", error)
                raise
            except KeyboardInterrupt as error:
                error.args = (f"ended at once by a second signal; {hint}",)
                self.note("interrupted", error)
                raise
            except BaseException as error:
                self.note("failed", error)
                raise

    @property
    def lives(self) -> list[dict[str, Any]]:
        """The manifest entries of each stream for the last attempt and the recorded steps."""
        firsts = [each.first for each in self.job.streams]
        life = {"generation": self.job.generation, "first": firsts}
        return [{"life": life, RECORDED_STEPS: as_listed(spans)} for spans in self.recorded]

    @property
    def has_whole_logs(self) -> bool:
        return all(map(is_complete, self.recorded))

    def _resume(self) -> None:
        """Restore each stream of the job from its newest intact checkpoint."""
        streams = self._resumed()
        for stream in streams:
            place = stream.directory.path
            if stream.restored is not None:
                self.observer.on_note(f"{place}: going on at subnet {stream.first}")
            elif self.generation and stream.workload.is_trained:
                self.observer.on_note(f"{place}: no checkpoint is there yet: beginning at subnet 0")
        self.job = replace(self.job, streams=streams, generation=self.generation)
        self.generation += 1
        every = self.job.execution.records.logged_steps
        found = zip(self.recorded, streams, strict=True)
        self.recorded = [continued(spans, stream.first, every) for spans, stream in found]
        for stream, manifest, life in zip(streams, self.manifests, self.lives, strict=True):
            reserve(stream.directory, manifest)
            stream.directory.write_manifest({**manifest, **life})

    def _resumed(self) -> tuple[StreamJob, ...]:
        """Return all streams at their newest intact checkpoints, joined streams at one step."""
        streams = self.job.streams
        found = [self._behind(StreamId(n), each) for n, each in enumerate(streams)]
        for together in self.job.wiring.joined(len(streams)):
            written = [number for number in together if streams[number].workload.is_written]
            first = min((found[number].first for number in written), default=0)
            newest = {number: found[number].first for number in written}
            while any(found[number].first > first for number in written):
                for number in written:
                    found[number] = self._behind(StreamId(number), streams[number], first)
                first = min(found[number].first for number in written)
            for number in written:
                if newest[number] > first:  # the losses that they rely on must be computed again
                    streams[number].directory.checkpoints.remove_beyond(first)
            for number in together - set(written):
                found[number] = replace(found[number], begins=first)
        return tuple(found)

    def _behind(self, number: StreamId, stream: StreamJob, up_to: int | None = None) -> StreamJob:
        """Return a stream at its newest intact checkpoint, up to ``up_to`` subnets."""
        folder = stream.directory.checkpoints
        folder.sweep()
        self._leave_doubtful(stream)
        if not stream.workload.is_written or up_to == 0:
            return replace(stream, restored=None, kept=())
        latest = folder.latest(up_to)
        for problem in latest.passed_over:
            self.observer.on_note(f"a checkpoint was passed over: {problem}")
        if latest.checkpoint is None:
            return replace(stream, restored=None, kept=())
        if stream.workload.is_trained:
            check_losses(stream.directory.losses, latest.checkpoint.losses)
        restored = Restored(stream.workload.space, number, latest.checkpoint)
        if stream.workload.is_trained:
            check_cut_batch(stream.directory, stream.workload, restored.first)
        kept = restored.layers(self.job.participants[number])
        return replace(stream, restored=restored, kept=kept)

    def _leave_doubtful(self, stream: StreamJob) -> None:
        """Remove the checkpoints that depend on labels about which two teachers disagreed."""
        directory, steps = stream.directory, stream.workload.recipe.steps
        batch = first_in_doubt(directory.path)
        if batch is None:
            return
        passes = (SequenceId(each) for each in range(stream.num_passes))
        first = next(each for each in passes if steps.batch(each) >= batch)
        directory.checkpoints.remove_beyond(steps.first(first))
        settle(directory.path)
        self.observer.on_note(f"{directory.path}: going on before the labels in doubt, {batch} on")

    def note(self, status: str, error: BaseException) -> None:
        """Record the end of an attempt in the manifests; if that fails, add a note to ``error``."""
        streams = self.job.streams
        for stream, manifest, life in zip(streams, self.manifests, self.lives, strict=True):
            failure = {"status": status, "failure": str(error), **life}
            stream.directory.checkpoints.sweep()
            try:
                write_last(stream.directory, {**manifest, **failure})
            except OSError as another:
                error.add_note(f"and the manifest cannot be written: {another}")


RETRAIN = "retrain"
"""The command in the sources of a search's subnets."""


def how_to_go_on(sources: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Return instructions for resuming a run that ended early.

    ``sources`` are empty unless a command line started the run.
    """
    commands = {source.get("command") for source in sources}
    if RETRAIN in commands:
        return "go on with the same naspipe retrain, or the same call"
    if any(sources):
        command = "distill" if "distill" in commands else "train"
        return f"go on with: naspipe {command} --resume {path}"
    return f"go on with the same call, with run_dir={str(path)!r} and resume=True"


def check_resumable(
    directory: RunDirectory, definition: Definition, choices: Sequence[Sequence[int]] | None
) -> dict[str, Any]:
    """Return the manifest of a run, after checking that it has this definition and this stream.

    ``choices`` is None for a stream whose subnets are proposed or drawn during training; those are
    compared as they arrive.

    Raises:
        ConfigError: if it is not a run directory, or belongs to another run.
    """
    manifest = directory.read_manifest()
    found, expected = manifest.get("definition"), json.loads(json.dumps(definition.as_dict()))
    if not isinstance(found, dict):
        raise ConfigError(f"{directory.path}: its manifest has no definition to go on with")
    for key, there, here in differing(found, expected):
        raise ConfigError(
            f"{directory.path} is another run: its {key} is {there}, you asked for {here}; resume "
            f"it as it was defined, or choose a new --run-dir"
        )
    if manifest.get("status") == "planning":
        raise ConfigError(
            f"{directory.path} was ended while it was planned: there is nothing to go on with; "
            f"remove it, and begin anew (--resume-if-exists does both)"
        )
    if choices is None:
        return manifest
    if [list(each) for each in read_stream(directory.stream)] != [list(each) for each in choices]:
        raise ConfigError(
            f"{directory.stream}: expected the stream that the sampler {definition.sampler} draws, "
            f"found another; put back the file it came from"
        )
    return manifest
