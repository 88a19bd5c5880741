"""Sentence pairs from LibreOffice's help pages: read, paired, cleaned and split.

Paragraphs of two languages are paired by the name of their page and by their identifier. The split
of a pair depends on the name of its page.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from naspipe.config.errors import DataError

_PARAGRAPH_TAGS = frozenset({"p", "h", "h1", "h2", "h3", "h4", "h5", "h6"})
_PARAGRAPH_IDS = ("par_", "hd_")
_SPACE = re.compile(r"\s+")
MIN_WORDS = 4
MAX_WORDS = 60
MAX_LENGTH_RATIO = 2.0
SPLITS = ("train", "valid", "test")
_HELD_OUT_PERCENT = 2  # of the pages, for each of valid and test

Pair = tuple[str, str]
ParagraphId = tuple[str, int]
"""An element's id, and the number of earlier paragraphs of the page with that id."""


@dataclass(slots=True)
class _Frame:
    """One open element of a paragraph: the paragraph itself or a span in it."""

    kind: str  # paragraph, span, switch (its children are variants), variant
    is_default: bool = False
    parts: list[str] = field(default_factory=list)
    variants: list[_Frame] = field(default_factory=list)

    def text(self) -> str:
        """Return the text; for a switch, that of the default variant, or of the first one."""
        if self.kind != "switch":
            return "".join(self.parts)
        chosen = [variant for variant in self.variants if variant.is_default] or self.variants
        return chosen[0].text() if chosen else ""


class _ParagraphReader(HTMLParser):
    """Collects the text of each heading or paragraph that has an id.

    If the help has different texts for several systems or programs (``switchinline``), one of them
    is chosen by the same rule in every language.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: dict[ParagraphId, str] = {}
        self._seen: Counter[str] = Counter()
        self._open = ("", "")  # tag and id of the open paragraph
        self._frames: list[_Frame] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        identity = attributes.get("id") or ""
        if tag in _PARAGRAPH_TAGS:
            self._end_paragraph()
            if identity.startswith(_PARAGRAPH_IDS):
                self._open = (tag, identity)
                self._frames = [_Frame("paragraph")]
        elif self._frames and tag == "span":
            if self._frames[-1].kind == "switch":
                frame = _Frame("variant", is_default=identity.startswith("default"))
            elif "switchinline" in (attributes.get("class") or "").split():
                frame = _Frame("switch")
            else:
                frame = _Frame("span")
            self._frames.append(frame)
        elif self._frames and tag == "br":
            self._frames[-1].parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open[0]:
            self._end_paragraph()
        elif tag == "span" and len(self._frames) > 1:
            self._end_span()

    def handle_data(self, data: str) -> None:
        if self._frames:
            self._frames[-1].parts.append(data)

    def updatepos(self, i: int, j: int) -> int:
        """Do not count lines: the numbers are not used, and counting takes a tenth of the time."""
        return j

    def close(self) -> None:
        super().close()
        self._end_paragraph()

    def _end_span(self) -> None:
        frame = self._frames.pop()
        if frame.kind == "variant":
            self._frames[-1].variants.append(frame)
        else:
            self._frames[-1].parts.append(frame.text())

    def _end_paragraph(self) -> None:
        if not self._frames:
            return
        while len(self._frames) > 1:
            self._end_span()
        identity = self._open[1]
        text = _SPACE.sub(" ", self._frames[0].text()).strip()
        self.paragraphs[identity, self._seen[identity]] = text
        self._seen[identity] += 1
        self._open = ("", "")
        self._frames = []


def read_paragraphs(page: str) -> dict[ParagraphId, str]:
    """Return the text of each paragraph of an HTML page, in the page's order."""
    reader = _ParagraphReader()
    reader.feed(page)
    reader.close()
    return reader.paragraphs


def pair_pages(
    source_pages: Path, target_pages: Path, done: Callable[[], None] = lambda: None
) -> dict[str, list[Pair]]:
    """Return the paragraph pairs of every page that both directories contain, by the page's path.

    ``done`` is called after each page. Raises `DataError` if nothing can be paired.
    """
    pages: dict[str, list[Pair]] = {}
    for source in sorted(source_pages.rglob("*.html")):
        name = source.relative_to(source_pages).as_posix()
        target = target_pages / name
        if target.is_file():
            pages[name] = _pair(_read(source), _read(target))
        done()
    if not any(pages.values()):
        raise DataError(
            f"{source_pages} and {target_pages}: expected help pages with the same names and "
            f"paragraph ids, found none: give packages of the same version"
        )
    return pages


def _pair(source: str, target: str) -> list[Pair]:
    translated = read_paragraphs(target)
    return [
        (text, translated[identity])
        for identity, text in read_paragraphs(source).items()
        if identity in translated
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a page in UTF-8 ({error})") from None


def is_clean(source: str, target: str) -> bool:
    """Return True if a pair looks like a sentence and its translation.

    Both have `MIN_WORDS` to `MAX_WORDS` words, neither more than `MAX_LENGTH_RATIO` times the
    other's, and they differ (equal ones are program text or not translated).
    """
    first, second = len(source.split()), len(target.split())
    shorter, longer = min(first, second), max(first, second)
    return (
        shorter >= MIN_WORDS
        and longer <= MAX_WORDS
        and longer <= MAX_LENGTH_RATIO * shorter
        and source != target
    )


def split_of(page: str) -> str:
    """Return the split of all pairs of a page, by a hash of its path."""
    digest = hashlib.sha256(page.encode()).digest()
    percent = int.from_bytes(digest[:8], "big") % 100
    if percent < _HELD_OUT_PERCENT:
        return "valid"
    return "test" if percent < 2 * _HELD_OUT_PERCENT else "train"


def split_pairs(pages: Mapping[str, Sequence[Pair]]) -> dict[str, list[Pair]]:
    """Return the clean pairs of each split, in the order of the pages, each pair only once.

    A pair that occurs in several splits is kept in the first of `SPLITS`, so that valid and test
    contain no pair of train.
    """
    found: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for page in sorted(pages):
        found[split_of(page)] += [pair for pair in pages[page] if is_clean(*pair)]
    seen: set[Pair] = set()
    return {split: _unseen(found[split], seen) for split in SPLITS}


def _unseen(pairs: Iterable[Pair], seen: set[Pair]) -> list[Pair]:
    fresh = []
    for pair in pairs:
        if pair not in seen:
            seen.add(pair)
            fresh.append(pair)
    return fresh
