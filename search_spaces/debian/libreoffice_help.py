"""English-German sentence pairs from LibreOffice's help, binarised as in fairseq.

Words are cut into subwords by byte pair encoding, which subword-nmt learns on the training split.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from naspipe.config.errors import DataError
from naspipe.data.cache import Description, PreparationProgress
from naspipe.data.fairseq import (
    EOS,
    SPECIAL_SYMBOLS,
    UNKNOWN,
    build_dictionary,
    write_dictionary,
    write_mmap,
)
from search_spaces.debian.help_pages import Pair, pair_pages, split_pairs
from search_spaces.debian.packages import Package, unpacked

RECIPE = 1
MERGES = {"en-de-2k": 2_000, "en-de-8k": 8_000}
_PACKAGES = ("libreoffice-help-en-us", "libreoffice-help-de")
_FOLDERS = ("en-US", "de")
_LANGUAGES = ("en", "de")
_PAIR = "en-de"
_WORD = re.compile(r"\w+|[^\w\s]")

CutPair = tuple[list[str], list[str]]


def build(
    directory: Path, name: str, source: Path | None, progress: PreparationProgress
) -> Description:
    """Write data set ``name`` into the empty ``directory``: fetch, pair, clean, cut, binarise."""
    with tempfile.TemporaryDirectory(prefix=".work-", dir=directory) as work:
        progress.phase("fetch " + ", ".join(_PACKAGES) if source is None else f"read {source}")
        packages = unpacked(_PACKAGES, Path(work), dataset=name, source=source)
        english, german = (
            _pages(packages[package], folder)
            for package, folder in zip(_PACKAGES, _FOLDERS, strict=True)
        )
        progress.phase("read and pair help pages", sum(1 for _ in english.rglob("*.html")))
        pages = pair_pages(english, german, progress.advance)
    splits = split_pairs(pages)
    if not splits["train"]:
        raise DataError(f"data set '{name}': no clean sentence pair in {', '.join(_PACKAGES)}")
    counts = binarise(splits, directory, MERGES[name], progress)
    versions = [f"{package.name} {package.version}" for package in packages.values()]
    return Description(
        source="Debian packages " + ", ".join(_PACKAGES),
        version=", ".join(versions),
        licence="MPL-2.0",
        recipe=RECIPE,
        counts={"pages": len(pages), "paragraph_pairs": sum(map(len, pages.values())), **counts},
    )


def _pages(package: Package, folder: str) -> Path:
    pages = package.directory / "usr" / "share" / "libreoffice" / "help" / folder / "text"
    if not pages.is_dir():
        raise DataError(
            f"package {package.name} {package.version}: expected usr/share/libreoffice/help/"
            f"{folder}/text, found no such directory"
        )
    return pages


def binarise(
    splits: Mapping[str, Sequence[Pair]],
    directory: Path,
    merges: int,
    progress: PreparationProgress,
) -> dict[str, int]:
    """Write codes, dictionaries and binarised splits, and return the counts.

    Merges and dictionary are learned on train only and are shared by both languages.
    """
    progress.phase("learn subwords", merges)
    codes = learn_merges(
        (text for pair in splits["train"] for text in pair), merges, progress.advance
    )
    (directory / "codes.bpe").write_text(codes, "utf-8")

    progress.phase("cut and binarise", sum(map(len, splits.values())))
    cutter = SubwordCutter(codes)
    cut: dict[str, list[CutPair]] = {}
    for split, pairs in splits.items():
        cut[split] = []
        for source, target in pairs:
            cut[split].append((cutter(source), cutter(target)))
            progress.advance()
    entries = build_dictionary(
        Counter(word for pair in cut["train"] for words in pair for word in words)
    )
    for language in _LANGUAGES:
        write_dictionary(directory / f"dict.{language}.txt", entries)
    tokens = {symbol: len(SPECIAL_SYMBOLS) + place for place, (symbol, _) in enumerate(entries)}
    for split, cut_pairs in cut.items():
        _write_split(directory, split, cut_pairs, tokens)
    vocabulary = len(SPECIAL_SYMBOLS) + len(entries)
    return {"vocabulary": vocabulary, **{f"{split}_pairs": len(cut[split]) for split in cut}}


def _write_split(
    directory: Path, split: str, pairs: Sequence[CutPair], tokens: Mapping[str, int]
) -> None:
    for side, language in enumerate(_LANGUAGES):
        sentences = [[*(tokens.get(word, UNKNOWN) for word in pair[side]), EOS] for pair in pairs]
        prefix = directory / f"{split}.{_PAIR}.{language}"
        write_mmap(prefix, sentences, len(SPECIAL_SYMBOLS) + len(tokens))


def words_of(text: str) -> list[str]:
    """Return the words and punctuation marks of a text."""
    return _WORD.findall(text)


class _CodesFile(io.StringIO):
    """Receives the merges, one per write, and counts them."""

    def __init__(self, learned: Callable[[], None]) -> None:
        super().__init__()
        self._learned = learned

    def write(self, text: str) -> int:
        self._learned()
        return super().write(text)


def learn_merges(
    texts: Iterable[str], merges: int, learned: Callable[[], None] = lambda: None
) -> str:
    """Return the text of a codes file with up to ``merges`` merges learned on ``texts``.

    ``learned`` is called about once per merge. The result depends only on the texts' word counts.
    """
    from subword_nmt.learn_bpe import learn_bpe  # here: runs on other data need no subword-nmt

    counts = Counter(word for text in texts for word in words_of(text))
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    vocabulary = [f"{word} {count}" for word, count in ordered]
    codes = _CodesFile(learned)
    # It draws its own progress bar, and writes there if it stops early.
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe(vocabulary, codes, merges, is_dict=True)
    return codes.getvalue()


class SubwordCutter:
    """Cuts texts by learned merges; a subword that is continued by the next one ends in ``@@``."""

    def __init__(self, codes: str) -> None:
        from subword_nmt.apply_bpe import BPE

        self._bpe = BPE(io.StringIO(codes))

    def __call__(self, text: str) -> list[str]:
        subwords: list[str] = self._bpe.segment_tokens(words_of(text))
        return subwords
