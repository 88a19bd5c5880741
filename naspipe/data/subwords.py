"""Cut text into subwords with byte pair encoding, learned by subword-nmt."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable

_WORD = re.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Return the words and punctuation marks of a text."""
    return _WORD.findall(text)


class _CodesFile(io.StringIO):
    """Takes the merges, one per write, and counts them."""

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

    ``learned`` is called about once per merge. The result depends on the texts' word counts only.
    """
    from subword_nmt.learn_bpe import learn_bpe  # here: runs on other data need no subword-nmt

    counts = Counter(word for text in texts for word in words_of(text))
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    vocabulary = [f"{word} {count}" for word, count in ordered]
    codes = _CodesFile(learned)
    # It draws a progress bar of its own and reports there that it stops early.
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe(vocabulary, codes, merges, is_dict=True)
    return codes.getvalue()


class SubwordCutter:
    """Cuts texts by learned merges; a subword that goes on in the next one ends in ``@@``."""

    def __init__(self, codes: str) -> None:
        from subword_nmt.apply_bpe import BPE

        self._bpe = BPE(io.StringIO(codes))

    def __call__(self, text: str) -> list[str]:
        """Return the subwords of ``text``."""
        subwords: list[str] = self._bpe.segment_tokens(words_of(text))
        return subwords
