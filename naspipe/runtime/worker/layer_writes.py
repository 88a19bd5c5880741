"""WRITEs that were commanded together, carried out and told of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from naspipe.core.commands import WriteLayer
from naspipe.core.events import WriteFinished
from naspipe.runtime.blocks.ports import Updates
from naspipe.runtime.layers.layer_store import LayerStore
from naspipe.runtime.worker.ports import StageSink


class LayerWrites:
    """Applies WRITEs on one stage.

    Args:
        updates: what applies them.
        stores: the layers of each stream.
        digests: hash the bytes that each leaves.
        verified: sequence IDs below this are compared with a plain loop.
        sink: told of the layers that these leave.
    """

    def __init__(
        self,
        updates: Updates,
        stores: Sequence[LayerStore],
        digests: bool,
        verified: int,
        sink: StageSink,
    ) -> None:
        self._updates = updates
        self._stores = tuple(stores)
        self._digests = digests
        self._verified = verified
        self._sink = sink

    def write(
        self, commands: Sequence[WriteLayer], begin: Callable[[WriteLayer], None]
    ) -> Iterator[WriteFinished]:
        """Apply them; each is said to have taken the same share of the time.

        ``begin`` is called before each, so that whatever one raises can be told of by its layer.
        """
        start_ns = time.monotonic_ns()
        owed_ns = self._updates.write(*commands, begin=begin) // len(commands)
        share_ns = (time.monotonic_ns() - start_ns) // len(commands)
        for command in commands:
            layer, end_ns = command.layer, start_ns + share_ns
            is_version = self._digests and command.ends_step
            digest = self._stores[layer.stream][layer].digest() if is_version else ""
            if command.ends_step and command.sequence_id < self._verified:
                self._sink.written(command, self._stores[layer.stream][layer])
            yield WriteFinished(end_ns, layer, command.sequence_id, start_ns, digest, owed_ns)
            start_ns = end_ns
