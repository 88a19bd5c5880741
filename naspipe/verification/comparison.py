"""Compare the first steps of a run, as reported by its stages, with those of the plain loop.

Both sides report the bits of each pass's loss, and for each step a digest of every tensor of every
layer that the step wrote. Reports of a step are compared as soon as both sides have them, so that a
difference names the first step, layer and tensor that differ. This module computes no layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from naspipe.config.errors import VerificationError
from naspipe.verification.audit import STEPS_BEFORE
from naspipe.verification.records import LayerDigests

_MOST_HINTS = 3
"""Maximum number of observations in a message."""


@dataclass(slots=True)
class _Side:
    """The reports of one side for one stream in one step."""

    losses: dict[int, str] = field(default_factory=dict)
    """Bits of each loss by the number of the pass."""
    layers: dict[str, LayerDigests] = field(default_factory=dict)
    """Digests of each layer by its label."""


class Comparison:
    """Compares consecutive steps of a run with those of its plain loop.

    Args:
        steps: maximum number of steps to compare.
        passes: number of passes per step, which is the same for all streams of a run.
        names: name of each stream in messages; empty for a single stream.
        first: first step to compare.
    """

    def __init__(self, steps: int, passes: int, names: Iterable[str], first: int = 0) -> None:
        self.steps, self.first = steps, first
        self._passes = passes
        self._names = tuple(names)
        self._run: dict[tuple[int, int], _Side] = {}
        self._plain: dict[int, list[_Side]] = {}
        self._hints: list[list[tuple[str, str]]] = [[] for _ in self._names]
        """Observations of the plain loop for each stream, as pairs of layer label and text."""
        self._remembered: dict[str, str] = {}
        """By layer label, the first changed attribute that checkpoints do not contain."""
        self.verified_steps = 0
        """Number of steps, from the first one, that both sides have reported with equal bits."""

    @property
    def end(self) -> int:
        """The first sequence ID after the steps that are compared."""
        return (self.first + self.steps) * self._passes

    @property
    def verified_until(self) -> int:
        """The first sequence ID that has not been verified."""
        return (self.first + self.verified_steps) * self._passes

    @property
    def is_complete(self) -> bool:
        return self.verified_steps == self.steps

    @property
    def note(self) -> str:
        """A line about layers with state that checkpoints do not contain; empty if none."""
        if not self._remembered or self.verified_steps <= STEPS_BEFORE:
            return ""
        label, attribute = min(self._remembered.items())
        count = len(self._remembered) - 1
        others = f" (and {count} other layer{'s' * (count > 1)})" if count else ""
        return (
            f"layer {label}{others}: its forward changes its attribute {attribute}, which no "
            f"checkpoint holds; nothing in the verified steps depends on it, and if anything does "
            f"later, register_buffer({attribute.rpartition('.')[2]!r}, ...) keeps it"
        )

    def add_loss(self, stream: int, sequence_id: int, bits: str) -> None:
        """Add the loss of a pass of the run; VerificationError if it differs."""
        step, number = divmod(sequence_id, self._passes)
        if sequence_id < self.end:
            self._run.setdefault((stream, step), _Side()).losses[number] = bits
            self._compare(step)

    def add_layer(self, stream: int, sequence_id: int, label: str, digests: LayerDigests) -> None:
        """Add a layer that the run wrote at the end of a step; VerificationError if it differs."""
        step = sequence_id // self._passes
        if sequence_id < self.end:
            if digests:  # all versions of a layer without state are equal
                self._run.setdefault((stream, step), _Side()).layers[label] = digests
            self._compare(step)

    def add_plain(self, step: int, streams: Iterable[Mapping[str, Any]]) -> None:
        """Add the records of the plain loop for a step; VerificationError if they differ."""
        streams = list(streams)
        for hints, each in zip(self._hints, streams, strict=True):
            hints += [(label, text) for label, text in each.get("hints", ())]
            for label, attribute in each.get("remembered", ()):
                self._remembered.setdefault(label, attribute)
                hints.append((label, f"its forward changes its attribute {attribute}"))
        self._plain[step] = [
            _Side(
                dict(enumerate(each["losses"])),
                {label: own for label, own in each["layers"].items() if own},
            )
            for each in streams
        ]
        self._compare(step)

    def _compare(self, step: int) -> None:
        """Compare the reports that both sides have of a step, and count the equal steps."""
        for stream, plain in enumerate(self._plain.get(step, ())):
            self._compare_stream(step, stream, plain)
        while self._is_whole(self.first + self.verified_steps):
            self.verified_steps += 1

    def _compare_stream(self, step: int, stream: int, plain: _Side) -> None:
        run = self._run.get((stream, step), _Side())
        for number, bits in sorted(run.losses.items()):
            if (expected := plain.losses.get(number)) != bits:
                which = f"pass {number} of step {step}" if self._passes > 1 else f"step {step}"
                raise self._difference(stream, "", f"the loss of {which}", expected, bits)
        for label, digests in sorted(run.layers.items()):
            if label not in plain.layers:
                what = f"layer {label}, which the plain loop does not write in step {step}"
                raise self._difference(stream, label, what, None, "a step of its optimizer")
            expected_of = plain.layers[label]
            for name in sorted(expected_of.keys() | digests.keys()):
                if (expected := expected_of.get(name)) != (found := digests.get(name)):
                    what = f"{name} of layer {label} after step {step}"
                    raise self._difference(stream, label, what, expected, found)

    def _is_whole(self, step: int) -> bool:
        plain = self._plain.get(step)
        if plain is None or step >= self.first + self.steps:
            return False
        for stream, side in enumerate(plain):
            run = self._run.get((stream, step), _Side())
            if run.losses.keys() != side.losses.keys() or run.layers.keys() != side.layers.keys():
                return False
        return True

    def _difference(
        self, stream: int, label: str, what: str, expected: str | None, found: str | None
    ) -> VerificationError:
        name = self._names[stream] if stream < len(self._names) else ""
        where = f"{name}: " if name else ""
        return VerificationError(
            f"{where}{what} differs from the plain loop: expected {expected or 'nothing'}, found "
            f"{found or 'nothing'}{self._likely_reason(stream, label)}; the run was stopped before "
            f"it published a checkpoint with the difference"
        )

    def _likely_reason(self, stream: int, label: str) -> str:
        """Return observations about a layer and the loss; about all layers if the loss differs."""
        hints = [
            f"{text} (layer {each})" if each else text
            for each, text in reversed(self._hints[stream])
            if each in ("", label) or not label
        ]
        if not hints:
            return ""
        more = f" and {len(hints) - _MOST_HINTS} more" if len(hints) > _MOST_HINTS else ""
        return f"; likely reason: {', '.join(hints[:_MOST_HINTS])}{more}"
