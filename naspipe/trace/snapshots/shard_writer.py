"""A shard that is written while its tensors are still captured.

In the file the header comes first, but it can only be made last. So room is left for it::

    header, spaces | larger items | streamed items, block by block | smaller items

Items of one size are streamed, as soon as they fill a block. The others (counters of batch
normalisation) are few, and wait. So every tensor is aligned to its items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from naspipe.config.errors import LogError
from naspipe.trace.snapshots.shard_headers import HEADER_LENGTH, Header, header_digest
from naspipe.trace.storage.direct_writer import PAGE_BYTES, DirectWriter
from naspipe.trace.storage.whole_files import atomic_file
from naspipe.trace.storage.writing import note_room


class ShardWriter:
    """Writes one shard, whole or not at all.

    Args:
        path: of the file; its directory is made when there is something to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = ExitStack()
        self._writer: DirectWriter | None = None
        self._streamed_from = 0
        self._streamed_bytes = 0

    def append(self, block: memoryview, room: int) -> None:
        """Write the next block of the items that are streamed.

        Args:
            block: of aligned memory, a multiple of a page.
            room: bytes to leave before the first block; a guess.

        Raises:
            OSError: when it cannot be written. Nothing is left of the file.
        """
        with self._or_nothing():
            writer = self._begun()
            if not self._streamed_bytes:
                self._streamed_from = _round_up(room, PAGE_BYTES)
            writer.write_pages(block, self._streamed_from + self._streamed_bytes)
        self._streamed_bytes += len(block)

    def finish(
        self, header: Header, streamed_items: int, rest: Mapping[int, Sequence[memoryview]]
    ) -> dict[str, Any]:
        """Write the rest and the header; returns the shard's entry for the manifest's ``shards``.

        Args:
            header: of everything, those with items of the same size in the order of their bytes.
            streamed_items: the size of the items that were appended; 0 for none.
            rest: by size of the items, all other bytes.

        Raises:
            LogError: when there are not as many bytes as the header says.
            OSError: when it cannot be written. Nothing is left of the file.
        """
        sizes = {*header.nbytes, *rest}
        streamed = streamed_items or max(sizes, default=1)
        ahead = sorted(size for size in sizes if size > streamed)
        behind = [streamed, *sorted((size for size in sizes if size < streamed), reverse=True)]
        for size in sizes:
            found = sum(map(len, rest.get(size, ()))) + self._streamed_bytes * (size == streamed)
            self._check(size, header.nbytes.get(size, 0), found)
        first, last = (
            [data for s in which for data in rest.get(s, ())] for which in (ahead, behind)
        )
        text = header.text([*ahead, *behind])
        length = sum(header.nbytes.values())
        with self._or_nothing(HEADER_LENGTH.size + len(text) + length):
            begin = self._make_room(HEADER_LENGTH.size + len(text), sum(map(len, first)))
            text = text.ljust(begin - HEADER_LENGTH.size)
            text = HEADER_LENGTH.pack(len(text)) + text
            self._write([text, *first], 0)
            self._write(last, self._streamed_from + self._streamed_bytes)
            self._open.close()
        return {
            "file": self._path.name,
            "bytes": begin + length,
            "header_blake2b": header_digest(text),
            "crc32": header.checksums([*ahead, *behind]),
        }

    def abort(self) -> None:
        """Leave nothing of it."""
        self._open.__exit__(GeneratorExit, GeneratorExit(), None)

    @contextmanager
    def _or_nothing(self, needed_bytes: int = 0) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if isinstance(error, OSError):
                note_room(error, self._path, needed_bytes)
            self._open.__exit__(type(error), error, error.__traceback__)
            raise

    def _begun(self) -> DirectWriter:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._open.enter_context(atomic_file(self._path))
            self._writer = DirectWriter(file.fileno())
        return self._writer

    def _check(self, size: int, expected: int, found: int) -> None:
        if found != expected:
            raise LogError(
                f"{self._path}: tensors with items of {size} bytes have {expected} bytes, "
                f"found {found}"
            )

    def _make_room(self, header_bytes: int, first_bytes: int) -> int:
        """Have room before what is streamed, and move it where there is less.

        Returns where the header ends.
        """
        needed, before = header_bytes + first_bytes, self._streamed_from
        if not self._streamed_bytes:
            self._streamed_from = _round_up(needed, 8)
        elif needed > before:
            self._streamed_from = _round_up(needed, PAGE_BYTES)
            self._begun().move(self._streamed_bytes, before, self._streamed_from)
        return self._streamed_from - first_bytes

    def _write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        for data in parts:
            self._begun().write(data, offset)
            offset += len(data)


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
