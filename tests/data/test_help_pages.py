"""Paragraphs, pairs, cleaning and splitting, on small pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from naspipe.config.errors import DataError
from search_spaces.debian.help_pages import (
    SPLITS,
    is_clean,
    pair_pages,
    read_paragraphs,
    split_of,
    split_pairs,
)
from search_spaces.debian.libreoffice_help import SubwordCutter, learn_merges, words_of

from .conftest import page, page_names

SWITCH = (
    '<p id="par_id1">Press <span id="s" class="switchinline"><span hidden="true" id="MACx" '
    'class="MAC">Command\n</span><span hidden="true" id="defaultx">Ctrl</span></span>+Z '
    '<span class="emph">now</span>.</p>'
)
NO_DEFAULT = (
    '<p id="par_id1">In <span class="switchinline"><span id="CALCx" class="CALC">'
    '<span class="emph">Calc</span></span><span id="DRAWx">Draw</span></span>, &amp; so on</p>'
)


def test_text_of_a_paragraph() -> None:
    text = '<h1 id="hd_1"><a name="x"></a>A\n  title</h1>t<p id="par_2">one<br>two</p><p>no id</p>'
    assert read_paragraphs(text) == {("hd_1", 0): "A title", ("par_2", 0): "one two"}


def test_one_variant_of_a_switch_is_taken() -> None:
    assert list(read_paragraphs(SWITCH).values()) == ["Press Ctrl+Z now."]
    assert list(read_paragraphs(NO_DEFAULT).values()) == ["In Calc, & so on"]
    empty = '<p id="par_1">a<span class="switchinline"> </span>b</p>'
    assert list(read_paragraphs(empty).values()) == ["ab"]


def test_repeated_ids_and_unclosed_elements() -> None:
    text = '<p id="par_1">a</p><p id="par_1">b <span>c<p id="par_3">d</span>'
    expected = {("par_1", 0): "a", ("par_1", 1): "b c", ("par_3", 0): "d"}
    assert read_paragraphs(text) == expected


def test_pages_are_paired_by_path_and_id(tmp_path: Path) -> None:
    english, german = tmp_path / "en", tmp_path / "de"
    for root, texts in ((english, ["a", "b", "c"]), (german, ["A", "B"])):
        (root / "x").mkdir(parents=True)
        (root / "x" / "one.html").write_text(page(texts))
    (english / "two.html").write_text(page(["only here"]))
    calls: list[int] = []
    pairs = pair_pages(english, german, lambda: calls.append(1))
    assert pairs == {"x/one.html": [("a", "A"), ("b", "B")]}
    assert len(calls) == 2


def test_nothing_to_pair(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="same names and paragraph ids, found none"):
        pair_pages(tmp_path, tmp_path)
    (tmp_path / "a.html").write_bytes(b'<p id="par_1">\xff</p>')
    with pytest.raises(DataError, match=r"a\.html: expected a page in UTF-8"):
        pair_pages(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        ("one two three four", "eins zwei drei vier", True),
        ("one two three", "eins zwei drei vier", False),
        ("w " * 60, "x " * 60, True),
        ("w " * 61, "x " * 60, False),
        ("w " * 8, "x " * 4, True),
        ("w " * 9, "x " * 4, False),
        ("Dim a As Integer", "Dim a As Integer", False),
    ],
)
def test_cleaning(source: str, target: str, kept: bool) -> None:
    assert is_clean(source, target) is kept
    assert is_clean(target, source) is kept


def test_splits_share_no_pair_and_repeat_none() -> None:
    pages = {}
    for name in page_names():
        own = f"The sentence of {name} alone"
        everywhere = ("In every single page again", "Auf jeder Seite aufs neue")
        pages[name] = [everywhere, (own, "Nur auf " + own), everywhere]
    splits = split_pairs(pages)
    pairs = [pair for split in SPLITS for pair in splits[split]]
    assert len(pairs) == len(set(pairs)) == len(pages) + 1
    assert splits["valid"] and splits["test"]
    assert ("In every single page again", "Auf jeder Seite aufs neue") in splits["train"]


def test_split_is_fixed_and_small() -> None:
    names = [f"p{number}.html" for number in range(10_000)]
    found = [split_of(name) for name in names]
    assert 150 < found.count("valid") < 250
    assert 150 < found.count("test") < 250
    assert split_of("swriter/guide/auto_off.html") == "train"  # a hash that never changes
    assert [split_of(name) for name in names] == found


def test_subwords_put_together_are_the_words() -> None:
    text = "Die Währung: 50.000 Währungseinheiten, Währung."
    assert words_of(text)[:3] == ["Die", "Währung", ":"]
    counted: list[int] = []
    codes = learn_merges([text] * 3, 12, lambda: counted.append(1))
    assert len(codes.splitlines()) == 13
    assert 12 <= len(counted) <= 14
    subwords = SubwordCutter(codes)(text)
    assert any(subword.endswith("@@") for subword in subwords)
    assert " ".join(subwords).replace("@@ ", "").split() == words_of(text)


def test_merges_depend_on_counts_only() -> None:
    texts = ["eins zwei drei", "zwei drei vier", "drei vier fünf"]
    assert learn_merges(texts, 9) == learn_merges(reversed(texts), 9)
