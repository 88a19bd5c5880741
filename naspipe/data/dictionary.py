"""fairseq's dictionary files: one ``symbol count`` a line, after four symbols that are implied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from naspipe.config.errors import DataError

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
        if not separator or not symbol or not _is_count(count):
            raise DataError(f"{path}:{number}: expected 'symbol count', found {line[:60]!r}")
        if symbol in known and not overwrites:
            raise DataError(f"{path}:{number}: symbol {symbol[:60]!r} stands in the file twice")
        known.add(symbol)
        symbols.append(symbol)
    return symbols


def build_dictionary(counts: Mapping[str, int], multiple: int = 8) -> list[tuple[str, int]]:
    """Return (symbol, count) by falling count, then symbol, filled up as fairseq does.

    With the four special symbols the size is a multiple of ``multiple``.
    """
    entries = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    missing = -(len(SPECIAL_SYMBOLS) + len(entries)) % multiple
    entries += [(f"madeupword{index:04d}", 0) for index in range(missing)]
    return entries


def write_dictionary(path: Path, entries: Sequence[tuple[str, int]]) -> None:
    """Write ``entries`` in order; their tokens are 4, 5, …"""
    path.write_text("".join(f"{symbol} {count}\n" for symbol, count in entries), "utf-8")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19
