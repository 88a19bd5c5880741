"""Shards of tensors that are there, as a stage writes them of what it captures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from naspipe.store.shards import Header, Listing, RawTensor, ShardWriter


def write_shard(
    directory: Path, name: str, layers: Mapping[str, Mapping[str, RawTensor]]
) -> dict[str, Any]:
    """Write one shard; returns its entry for the manifest's ``shards``.

    ``layers``: by what goes before their names, tensors by name.
    """
    header, rest = Header(), defaultdict(list)
    for prefix, tensors in layers.items():
        for dtype in dict.fromkeys(raw.dtype for raw in tensors.values()):
            these = {name: raw for name, raw in tensors.items() if raw.dtype == dtype}
            data = b"".join(raw.data for raw in these.values())
            listing = Listing(dtype, tuple((name, raw.shape) for name, raw in these.items()))
            header.add(prefix, listing, crc32(data))
            rest[listing.item_bytes].append(memoryview(data))
    return ShardWriter(directory / name).finish(header, 0, rest)
