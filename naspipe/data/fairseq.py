"""fairseq's two binarised formats: tokens of many sentences in ``PREFIX.bin`` and ``PREFIX.idx``.

Both are little endian. The reader trusts nothing in a file: every number is checked against the
files' sizes before anything is allocated, and an inconsistency is a `DataError`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from naspipe.config.errors import DataError

MMAP_MAGIC = b"MMIDIDX\x00\x00"
LAZY_MAGIC = b"TNTIDX\x00\x00"
_MMAP_HEADER = struct.Struct("<9sQBQ")
_LAZY_HEADER = struct.Struct("<8sQQQQQ")
_VERSION = 1
_NAMES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
_TYPES: dict[int, np.dtype[Any]] = {code: np.dtype(name) for code, name in _NAMES.items()}
_MANY_TOKENS = 1 << 22

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The sentences of one binarised file, in order; ``sizes`` are their numbers of tokens."""

    prefix: Path
    sizes: IntArray
    _offsets: IntArray
    """Start of each sentence, in tokens."""
    _tokens: npt.NDArray[Any]
    _shift: int
    """Offset that the file adds to every token."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> IntArray:
        """Return the tokens of one sentence as a new array."""
        start = int(self._offsets[index])
        stored = self._tokens[start : start + int(self.sizes[index])]
        tokens: IntArray = stored.astype(np.int64) - self._shift
        return tokens

    def check(self, vocabulary: int, end: int) -> None:
        """Raise unless all tokens are below ``vocabulary`` and each sentence ends in ``end``."""
        for start in range(0, len(self._tokens), _MANY_TOKENS):
            part = self._tokens[start : start + _MANY_TOKENS]
            low, high = int(part.min()) - self._shift, int(part.max()) - self._shift
            if low < 0 or high >= vocabulary:
                raise DataError(
                    f"{self.prefix}.bin: expected tokens 0 to {vocabulary - 1} of the dictionary, "
                    f"found {low if low < 0 else high}: the files do not belong together"
                )
        if not len(self):
            return
        empty = np.flatnonzero(self.sizes == 0)
        last = self._tokens[(self._offsets + self.sizes - 1)[self.sizes > 0]]
        wrong = np.flatnonzero(self.sizes > 0)[last != end + self._shift]
        if len(empty) or len(wrong):
            first = int(min([*empty[:1], *wrong[:1]]))
            raise DataError(f"{self.prefix}: sentence {first} does not end in token {end} (eos)")


def open_tokens(prefix: Path) -> TokenFile:
    """Open ``prefix.idx`` and ``prefix.bin`` of either format; the tokens stay on disk."""
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    try:
        content = np.fromfile(index, dtype=np.uint8)
        data_bytes = data.stat().st_size
    except OSError as error:
        raise DataError(
            f"{error.filename or index}: cannot be read ({error.strerror}); expected {index.name} "
            f"and {data.name} as fairseq-preprocess writes them"
        ) from None
    head = content[: len(MMAP_MAGIC)].tobytes()
    if head == MMAP_MAGIC:
        sizes, offsets, dtype = _read_mmap_index(index, content, data, data_bytes)
        shift = 0
    elif head.startswith(LAZY_MAGIC):
        sizes, offsets, dtype = _read_lazy_index(index, content, data, data_bytes)
        shift = 1
    else:
        raise DataError(
            f"{index}: expected an index of fairseq's (first bytes {MMAP_MAGIC!r} or "
            f"{LAZY_MAGIC!r}), found {head!r}"
        )
    if data_bytes % dtype.itemsize:
        raise DataError(
            f"{data}: expected a multiple of {dtype.itemsize} bytes, found {data_bytes}: truncated"
        )
    tokens: npt.NDArray[Any] = np.empty(0, dtype)
    if data_bytes:
        tokens = np.memmap(data, dtype=dtype, mode="r")
    return TokenFile(prefix, sizes, offsets, tokens, shift)


def _read_mmap_index(
    path: Path, content: npt.NDArray[np.uint8], data: Path, data_bytes: int
) -> tuple[IntArray, IntArray, np.dtype[Any]]:
    header = _MMAP_HEADER.size
    if len(content) < header:
        raise DataError(
            f"{path}: truncated: expected at least {header} bytes, found {len(content)}"
        )
    _, version, code, number = _MMAP_HEADER.unpack(content[:header].tobytes())
    dtype = _type_of(path, version, code)
    _check_length(path, len(content), header + 12 * number, number)
    split = header + 4 * number
    sizes = _array(content[header:split], "<i4")
    pointers = _array(content[split:], "<i8")
    bytes_of = sizes * dtype.itemsize
    # The comparison cannot overflow 64 bits, although a pointer may be any number.
    bad = (sizes < 0) | (pointers < 0) | (pointers % dtype.itemsize != 0)
    bad |= pointers > data_bytes - bytes_of
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{path}: sentence {first} has {sizes[first]} tokens of {dtype.itemsize} bytes at byte "
            f"{pointers[first]}, which is not inside {data.name} of {data_bytes} bytes: one of the "
            f"two is damaged or truncated"
        )
    return sizes, pointers // dtype.itemsize, dtype


def _read_lazy_index(
    path: Path, content: npt.NDArray[np.uint8], data: Path, data_bytes: int
) -> tuple[IntArray, IntArray, np.dtype[Any]]:
    header = _LAZY_HEADER.size
    if len(content) < header:
        raise DataError(
            f"{path}: truncated: expected at least {header} bytes, found {len(content)}"
        )
    _, version, code, item, number, dimensions = _LAZY_HEADER.unpack(content[:header].tobytes())
    dtype = _type_of(path, version, code)
    if item != dtype.itemsize:
        raise DataError(f"{path}: element size {item}, but type {code} has {dtype.itemsize} bytes")
    if dimensions != number:
        raise DataError(
            f"{path}: expected sentences (one dimension each), found {number} items with "
            f"{dimensions} dimensions in all"
        )
    _check_length(path, len(content), header + 16 * (number + 1) + 8 * number, number)
    split = header + 8 * (number + 1)
    places = _array(content[header:split], "<i8")
    offsets = _array(content[split : split + 8 * (number + 1)], "<i8")
    sizes = _array(content[split + 8 * (number + 1) :], "<i8")
    limit = data_bytes // dtype.itemsize
    if not (
        (places == np.arange(number + 1)).all()
        and ((offsets >= 0) & (offsets <= limit)).all()
        and ((sizes >= 0) & (sizes <= limit)).all()
        and offsets[0] == 0
        and (np.diff(offsets) == sizes).all()
    ):
        raise DataError(
            f"{path}: the places of its sentences do not fit each other or {data.name} of "
            f"{data_bytes} bytes: one of the two is damaged or truncated"
        )
    return sizes, offsets[:-1], dtype


def _type_of(path: Path, version: int, code: int) -> np.dtype[Any]:
    if version != _VERSION:
        raise DataError(f"{path}: expected version {_VERSION} of the format, found {version}")
    if code not in _TYPES:
        raise DataError(
            f"{path}: expected an integer type code (one of {sorted(_TYPES)}), found {code}"
        )
    return _TYPES[code]


def _check_length(path: Path, found: int, expected: int, number: int) -> None:
    if found != expected:
        raise DataError(f"{path}: expected {expected} bytes for {number} sentences, found {found}")


def _array(content: npt.NDArray[np.uint8], dtype: str) -> IntArray:
    values: IntArray = np.frombuffer(content.tobytes(), dtype=dtype).astype(np.int64)
    return values


def write_mmap(prefix: Path, sentences: Sequence[npt.ArrayLike], vocabulary: int) -> None:
    """Write ``sentences`` of tokens below ``vocabulary`` in fairseq's mmap format."""
    code = 8 if vocabulary < 65500 else 4  # fairseq's own choice
    dtype = _TYPES[code]
    arrays = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
    sizes = np.array([len(array) for array in arrays], dtype="<i4")
    ends = np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
    pointers = (ends - sizes.astype(np.int64) * dtype.itemsize).astype("<i8")
    flat = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
    if len(flat) and (flat.min() < 0 or flat.max() >= vocabulary):
        raise DataError(f"{prefix}: tokens must lie in 0 to {vocabulary - 1}")
    Path(f"{prefix}.bin").write_bytes(flat.astype(dtype).tobytes())
    header = _MMAP_HEADER.pack(MMAP_MAGIC, _VERSION, code, len(arrays))
    Path(f"{prefix}.idx").write_bytes(header + sizes.tobytes() + pointers.tobytes())


SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
BOS, PADDING, EOS, UNKNOWN = range(4)
_OVERWRITE = "#fairseq:overwrite"


def read_dictionary(path: Path) -> list[str]:
    """Return every symbol in the order of its token, the four special ones first."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); expected a dictionary"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8 text, found byte {error.start} is not") from None
    symbols = list(SPECIAL_SYMBOLS)
    known = set(symbols)
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        entry = line.rstrip("\r")
        overwrites = entry.endswith(f" {_OVERWRITE}")
        if overwrites:
            entry = entry.removesuffix(f" {_OVERWRITE}")
        symbol, separator, count = entry.rpartition(" ")
        is_count = count.isascii() and count.isdigit() and len(count) <= 19
        if not separator or not symbol or not is_count:
            raise DataError(f"{path}:{number}: expected 'symbol count', found {line[:60]!r}")
        if symbol in known and not overwrites:
            raise DataError(f"{path}:{number}: symbol {symbol[:60]!r} stands in the file twice")
        known.add(symbol)
        symbols.append(symbol)
    return symbols


def build_dictionary(counts: Mapping[str, int], multiple: int = 8) -> list[tuple[str, int]]:
    """Return (symbol, count) by decreasing count, then symbol, padded as in fairseq.

    Including the four special symbols, the size is a multiple of ``multiple``.
    """
    entries = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    missing = -(len(SPECIAL_SYMBOLS) + len(entries)) % multiple
    entries += [(f"madeupword{index:04d}", 0) for index in range(missing)]
    return entries


def write_dictionary(path: Path, entries: Sequence[tuple[str, int]]) -> None:
    """Write ``entries`` in order; their tokens are 4, 5, …"""
    path.write_text("".join(f"{symbol} {count}\n" for symbol, count in entries), "utf-8")
