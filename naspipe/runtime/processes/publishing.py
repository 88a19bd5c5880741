"""The launcher's side of checkpoints: parts of all stages become one, and old ones go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from naspipe.config.errors import StorageError, reason
from naspipe.runtime.checkpoints.ports import CheckpointReader
from naspipe.trace.results.losses_file import SectionLosses
from naspipe.trace.snapshots.checkpoints import CheckpointFolder, cut_name

_MERGED = ("versions", "history", "scalars", "strides")


class Publisher:
    """Publishes each checkpoint when every stage has written its part.

    Args:
        stages: of each stream, those that write a part of its checkpoints.
        generation: the run's, in the name of what the stages write.
        folders: of each stream.
        losses: of each stream; what belongs to a checkpoint is put on disk with it.
        keep: how many checkpoints of a stream are kept.
        reader: told of each; those that it still needs are kept, too.
        joined: streams that can only go on at the same cut: the newest that all have is kept, and
            what those that are ahead have beyond it, which will be the next.
        may_publish: whether all steps before a cut, of those that are to be, have been compared
            with the plain loop.
    """

    def __init__(
        self,
        stages: Sequence[Collection[int]],
        generation: int,
        folders: Sequence[CheckpointFolder],
        losses: Sequence[SectionLosses],
        keep: int,
        reader: CheckpointReader,
        joined: Iterable[Collection[int]] = (),
        may_publish: Callable[[int], bool] = lambda cut: True,
    ) -> None:
        self._may_publish = may_publish
        self._held: list[tuple[int, dict[str, Any]]] = []
        """Parts of checkpoints that may not be published yet."""
        self._joined = tuple(joined)
        self._stages = tuple(stages)
        self._generation = generation
        self._folders = tuple(folders)
        self._losses = tuple(losses)
        self._keep = keep
        self._reader = reader
        self._parts: dict[tuple[int, int], dict[int, dict[str, Any]]] = defaultdict(dict)
        self.newest: dict[int, int] = {}
        """By stream, the cut of the last checkpoint that was published."""

    def take(self, stage: int, part: dict[str, Any]) -> None:
        """One stage's part is on disk.

        Raises:
            StorageError: when the checkpoint cannot be published.
        """
        self._held.append((stage, part))
        self.publish_held()

    def publish_held(self) -> None:
        """Publish what waits, if it may be published by now.

        Raises:
            StorageError: when a checkpoint cannot be published.
        """
        while self._held and self._may_publish(self._held[0][1]["cut"]):
            self._publish(*self._held.pop(0))

    def _publish(self, stage: int, part: dict[str, Any]) -> None:
        stream, cut = part["stream"], part["cut"]
        parts = self._parts[stream, cut]
        parts[stage] = part
        if len(parts) < len(self._stages[stream]):
            return
        del self._parts[stream, cut]
        manifest = {
            **merge_parts(cut, [parts[number] for number in sorted(parts)]),
            "generation": self._generation,
        }
        try:
            manifest["losses"] = list(self._losses[stream].sync(cut))
            self._folders[stream].publish(cut_name(cut), self._generation, manifest)
            self._reader.published(stream, cut)
            self._prune(stream)
        except OSError as error:
            raise StorageError(
                f"checkpoint at subnet {cut}: it cannot be published: {reason(error)}; the "
                f"checkpoints before it are still good"
            ) from error
        self.newest[stream] = cut

    def _prune(self, stream: int) -> None:
        together = next((each for each in self._joined if stream in each), (stream,))
        cuts = [set(self._folders[number].cuts) for number in together]
        newest_of_all = max(set.intersection(*cuts), default=0)
        newest_of_slowest = min(max(own, default=0) for own in cuts)
        for number, own in zip(together, cuts, strict=True):
            to_come = (cut for cut in own if cut > newest_of_slowest)
            spared = {*self._reader.needed(number), newest_of_all, *to_come}
            self._folders[number].prune(self._keep, spared)


def merge_parts(subnets: int, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of a checkpoint from what its stages wrote."""
    manifest: dict[str, Any] = {"subnets": subnets, "shards": []}
    manifest |= {kind: {} for kind in _MERGED}
    for part in parts:
        manifest["shards"].append(part["shard"])
        for kind in _MERGED:
            manifest[kind] |= part[kind]
    return manifest
