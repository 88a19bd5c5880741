"""Compare runs bit by bit: losses, final state, and the order of reads and writes of each layer.

Runs can only be compared if they have the same definition. This includes the descriptions of layers
and the values that user functions capture (``made_of.json``), and the stream of subnets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.ids import Access
from naspipe.config.text import parse_json
from naspipe.store.access_log import RunLog, read_run_accesses
from naspipe.store.access_order import (
    RecordedSpans,
    is_complete,
    recorded_spans,
    shared_spans,
    unrecorded_steps,
)
from naspipe.store.checkpoints import Checkpoint, read_checkpoint
from naspipe.store.differences import (
    Difference,
    checkpoint_differences,
    log_differences,
    loss_differences,
)
from naspipe.store.labels import SpaceLabels
from naspipe.store.losses import Loss, iterate_losses
from naspipe.store.run_directory import RunDirectory, run_state

_ABSENT = object()


def differing(one: Any, other: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield dotted keys in sorted order where two JSON values differ, and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            inner = f"{key}.{name}" if key else name
            yield from differing(one.get(name, _ABSENT), other.get(name, _ABSENT), inner)
    elif type(one) is not type(other) or one != other:
        left, right = ("absent" if each is _ABSENT else f"{each!r:.80}" for each in (one, other))
        yield key, left, right


_LONGEST = 120


class MadeOf(NamedTuple):
    """What a run's names refer to: descriptions of each block's candidates, captured values by
    owner and name, and digests of the user's files (empty if the code is not in files)."""

    layers: Sequence[Sequence[str]]
    captured: Mapping[str, Mapping[str, str]]
    code: Mapping[str, str]


class Unlike(NamedTuple):
    """The first part that differs between two runs: ``layer 1.0``, or ``loss's scale``."""

    what: str
    one: str
    other: str
    aside: str = ""


def as_made_of(values: Any, where: Path) -> MadeOf:
    """Convert a file's JSON values; ConfigError if they are damaged."""
    try:
        texts = [str(text) for text in values["texts"]]
        layers = [[texts[number] for number in numbers] for numbers in values["layers"]]
        said = values["captured"].items()
        captured = {str(whose): dict(each.items()) for whose, each in said}
        code = dict(values["files"].items())
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} is damaged: {error!r:.80}") from error
    return MadeOf(layers, captured, code)


def read_made_of(path: Path) -> MadeOf | None:
    """Read a file; None if there is none, as in a simulated run. ConfigError if it is damaged."""
    if not path.exists():
        return None
    try:
        values = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error!r:.80}") from error
    return as_made_of(values, path)


def first_unlike(space: Mapping[str, Any], one: MadeOf, other: MadeOf) -> Unlike | None:
    """Return the first layer, or else captured value, that differs between two runs of one space.

    ``space`` is the entry of a manifest.
    """
    sides = zip(space["labels"], space["shared"], one.layers, other.layers, strict=False)
    for label, is_shared, was, now in sides:
        for candidate, (left, right) in enumerate(zip(was, now, strict=False)):
            if left != right:
                is_moved = sorted(was) == sorted(now)
                aside = f"the candidates of block {label} are the same in another order"
                what = f"layer {label}" if is_shared else f"layer {label}.{candidate}"
                lines = zip_longest(left.splitlines(), right.splitlines(), fillvalue="nothing")
                texts = next(pair for pair in lines if pair[0] != pair[1])
                left, right = (text.strip()[:_LONGEST] for text in texts)
                return Unlike(what, left, right, aside if is_moved else "")
    for whose in sorted(one.captured.keys() & other.captured.keys()):
        mine, others = one.captured[whose], other.captured[whose]
        for name in sorted(mine.keys() | others.keys()):
            left, right = (str(side.get(name, "absent")) for side in (mine, others))
            if left != right:
                return Unlike(f"{whose}'s {name}", left, right)
    return None


def otherwise_written(one: MadeOf, other: MadeOf) -> list[str]:
    """Return the names of files whose contents differ between two runs."""
    if not (one.code and other.code):
        return []
    names = one.code.keys() | other.code.keys()
    return sorted(name for name in names if one.code.get(name) != other.code.get(name))


class RecordedRun:
    """A run directory whose parts are read on first access.

    Raises:
        ConfigError: if the path is not a run directory.
        LogError: from a part that is damaged.
    """

    def __init__(self, path: Path | str) -> None:
        self.directory = RunDirectory(path)
        self.manifest = self.directory.read_manifest()
        if "space" not in self.manifest and "run" in self.manifest:
            whole = self.path.parent
            raise ConfigError(
                f"{self.path} is a search: expected the run that it is in, {whole}; naspipe report "
                f"{whole} shows its subnets, and {self.path / 'candidates.jsonl'} lists them"
            )
        self.labels = SpaceLabels(
            self.manifest.get("space", {}),
            self.manifest.get("stateless", ()),
            self.manifest.get("decided", ()),
        )

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def num_stages(self) -> int:
        """Number of stages of all groups together."""
        execution = self.manifest.get("execution", {})
        return int(execution.get("stages", 1)) * int(execution.get("groups", 1))

    @property
    def passes_per_step(self) -> int:
        return int(self.manifest.get("passes_per_step", 1))

    @property
    def recorded_spans(self) -> RecordedSpans:
        """The steps that the access log has."""
        try:
            return recorded_spans(self.manifest)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: its manifest is damaged: {error}") from error

    @property
    def has_whole_log(self) -> bool:
        """Return True if there is an access log and it holds every step."""
        return is_complete(self.recorded_spans) and not self.log.is_empty

    @cached_property
    def losses(self) -> list[Loss]:
        """The loss of every pass, in sequence order."""
        return self.directory.read_losses()

    @cached_property
    def log(self) -> RunLog:
        return RunLog(self.path)

    @cached_property
    def accesses(self) -> list[Access]:
        """Every access in order of time."""
        return read_run_accesses(self.path)

    def checkpoint(self) -> Checkpoint:
        """Return the final state; not cached, because it may be large."""
        return read_checkpoint(self.directory.checkpoint())


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Comparison of a run with the first; truthy if identical (``assert compare_runs(...)[0]``).

    ``reason`` explains why the runs cannot be compared, and is empty otherwise. ``differences`` are
    sorted. ``str()`` returns the verdict.
    """

    run: Path
    reason: str = ""
    warnings: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()

    @property
    def is_identical(self) -> bool:
        """Return True if the runs could be compared and no bit differs."""
        return not self.reason and not self.differences

    @property
    def first(self) -> Difference | None:
        """The earliest difference: by pass, then by block of the chain."""
        return self.differences[0] if self.differences else None

    def __bool__(self) -> bool:
        return self.is_identical

    def __repr__(self) -> str:
        return f"<{self.run}: {self}>"

    def __str__(self) -> str:
        """Return ``IDENTICAL``, or the first difference on one line and the totals on a second."""
        if self.reason:
            return f"cannot be compared: {self.reason}"
        if not self.differences:
            return "IDENTICAL"
        layers = len({(d.stream, d.layer) for d in self.differences if d.layer})
        losses = sum(d.what == "loss" for d in self.differences)
        text = f"first difference: {self.differences[0]}"
        counts = f"in all, {losses} losses and the state or order of {layers} layers differ"
        first_loss = next((d for d in self.differences if d.what == "loss"), None)
        if first_loss and first_loss.sequence_id == 0:
            counts += (
                "; as the very first loss does, look at what the runs began with: batches, and "
                "the weights of a network that is given (seed torch before it is made)"
            )
        elif first_loss not in (None, self.differences[0]):
            counts += f"; first loss that differs: step {first_loss.sequence_id}"
        return f"{text}\n{counts}"


def compare_runs(*runs: Path | str | Sequence[Path | str]) -> list[Comparison]:
    """Compare the first run with each other run, by losses, final state and access order.

    Args:
        runs: two or more run directories, as separate arguments or as a list.

    Returns:
        A :class:`Comparison` for each run but the first; it is truthy if no bit differs. To check
        all of them, use ``all(naspipe.compare_runs("runs/one", "runs/two"))``.

    Raises:
        ConfigError, LogError: if a recorded file is missing or damaged.
    """
    is_list = len(runs) == 1 and isinstance(runs[0], Sequence) and not isinstance(runs[0], str)
    paths: Sequence[Any] = runs[0] if is_list else runs  # type: ignore[assignment]
    wrong = [each for each in paths if not isinstance(each, str | Path)]
    if wrong or len(paths) < 2:
        raise ConfigError(
            f"compare_runs: expected two run directories or more, as in "
            f'naspipe.compare_runs("runs/one", "runs/two"), found '
            f"{f'{wrong[0]!r:.80}' if wrong else len(paths)}"
        )
    reference = RecordedRun(paths[0])
    return [compare_to(reference, RecordedRun(path)) for path in paths[1:]]


def compare_to(reference: RecordedRun, run: RecordedRun) -> Comparison:
    """Compare one run to another; see :func:`compare_runs`."""
    if reason := _reason(reference, run):
        return Comparison(run.path, reason)
    labels = reference.labels
    differences = [
        *loss_differences(
            iterate_losses(reference.directory.losses), iterate_losses(run.directory.losses), labels
        ),
        *checkpoint_differences(reference.checkpoint(), run.checkpoint(), labels),
    ]
    warnings = []
    for part in ("software", "hardware"):
        sides = (each.manifest.get("environment", {}).get(part, {}) for each in (reference, run))
        for key, left, right in differing(*sides):
            warnings.append(
                f"different {part}: {key} is {left} against {right}; bits may differ for that"
            )
    one, other = (read_made_of(side.directory.made_of) for side in (reference, run))
    if one and other and (names := otherwise_written(one, other)):
        files = ", ".join(names)
        warnings.append(f"these files differ between {reference.path} and {run.path}: {files}")
    unlogged = [side.path for side in (reference, run) if side.log.is_empty]
    if unlogged:
        paths = " and ".join(map(str, unlogged))
        warnings.append(f"no access log in {paths}: the order of accesses was not compared")
    else:
        spans = tuple(shared_spans(reference.recorded_spans, run.recorded_spans))
        warnings += filter(None, [unrecorded_steps(spans, reference.passes_per_step)])
        logs = (reference.log, run.log)
        differences += log_differences(*logs, labels, reference.passes_per_step, spans)
    ordered = tuple(sorted(differences, key=lambda difference: difference.key))
    return Comparison(run.path, "", tuple(warnings), ordered)


def _reason(reference: RecordedRun, run: RecordedRun) -> str:
    """Explain why two runs cannot be compared; empty if they can."""
    for side in (reference, run):
        state = run_state(side.directory, side.manifest)
        if state.status != "complete":
            return f"{side.path} is not complete: {state.said}"

    for part in ("definition", "space"):
        found = list(differing(reference.manifest.get(part), run.manifest.get(part)))
        if found:
            key, left, right = found[0]
            more = f", and {len(found) - 1} more differ" if found[1:] else ""
            return (
                f"different runs: {part}.{key} is {left} in {reference.path}, {right} in {run.path}"
                f"{more}\n{_advice(key, left)}"
            )

    # The same names can refer to different layers and different captured values.
    one, other = (read_made_of(side.directory.made_of) for side in (reference, run))
    if one and other and (unlike := first_unlike(reference.manifest["space"], one, other)):
        aside = f" ({unlike.aside})" if unlike.aside else ""
        return (
            f"different runs: the definition's {unlike.what} is {unlike.one} in {reference.path}, "
            f"{unlike.other} in {run.path}{aside}\n{_advice(unlike.what, unlike.one)}"
        )

    # Equal definitions can have different streams: the file of a ``file:`` sampler may change.
    streams = (_lines(side.directory.stream) for side in (reference, run))
    for number, (mine, its) in enumerate(zip_longest(*streams, fillvalue="absent")):
        if mine != its:
            return (
                f"different streams: subnet {number} is {mine:.80} in {reference.path}, "
                f"{its:.80} in {run.path}"
            )
    return ""


_FLAGS = ("steps", "seed", "sampler", "policy", "scale")
"""Parts of a definition that have their own command-line option."""


def _advice(key: str, value: str) -> str:
    """Return what to do so that two runs have the same definition."""
    head, _, name = key.partition(".")
    option = ""
    if key in _FLAGS:
        option = f"--{key} {value}".replace("'", "")
    elif head == "recipe" and name:
        option = f"--set {name}={value}".replace("'", "")
    elif head == "rules" and name:
        option = f"--set rule.{name}={value}".replace("'", "")
    said = f"with {option}" if option else f"with the same {key or 'definition'}"
    return (
        f"bits are compared of one definition: train one of the two again {said}; "
        f"stages, groups, budgets and restarts may differ"
    )


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)
