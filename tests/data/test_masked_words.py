"""Masked words are a pure function of (seed, sequence ID), drawn as the paper says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from naspipe.config.errors import ConfigError
from naspipe.data import MaskedWords, TranslationData, open_data, prepare
from naspipe.data.fairseq import PADDING, write_mmap

from .conftest import write_sentences

MASK = 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_sentences(tmp_path)


def masked(directory: Path, split: str = "train", max_tokens: int = 30) -> MaskedWords:
    return MaskedWords(TranslationData(directory, max_tokens, split), split)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_pure_and_fresh(directory: Path) -> None:
    data = masked(directory)
    keys = [(seed, n) for seed in (1, 2) for n in range(3 * data.batches_per_epoch)]
    expected = {key: data(*key) for key in keys}
    state = np.random.get_state()[1].tolist()
    other = masked(directory)
    assert all(same(other(*key), expected[key]) for key in reversed(keys))
    assert np.random.get_state()[1].tolist() == state
    data(1, 0)["input"].zero_()
    assert same(data(1, 0), expected[1, 0])


def test_the_sentences_come_back_with_their_words(directory: Path) -> None:
    """Padded behind instead of in front; ends of sentences stay."""
    data, plain = masked(directory), TranslationData(directory, 30)
    for number in range(data.batches_per_epoch):
        batch = data(1, number)
        is_chosen = batch["target"] != PADDING
        whole = torch.where(is_chosen, batch["target"], batch["input"])
        for row, sentence in zip(whole, plain(1, number)["source"], strict=True):
            words = sentence[sentence != PADDING]
            assert row.tolist() == words.tolist() + [PADDING] * (len(row) - len(words))
        assert int(is_chosen.sum()) == max(1, round(0.15 * int((whole > 3).sum())))
        assert not (whole[is_chosen] < 4).any()


def test_shares_are_those_of_the_paper(real_en_de: Path) -> None:
    data = open_data("masked:en-de-2k", max_tokens=600)
    assert isinstance(data, MaskedWords)
    mask = data.info["vocabulary"] - 1
    chosen = of_mask = kept = words = 0
    for number in range(300):
        batch = data(1, number)
        is_chosen = batch["target"] != PADDING
        words += int((batch["input"] > 3).sum())
        chosen += int(is_chosen.sum())
        of_mask += int((batch["input"] == mask).sum())
        kept += int((batch["input"] == batch["target"])[is_chosen].sum())
    assert chosen / words == pytest.approx(0.15, abs=0.002)
    assert of_mask / chosen == pytest.approx(0.8, abs=0.02)
    assert kept / chosen == pytest.approx(0.1, abs=0.02)


def test_each_epoch_chooses_anew_and_held_out_sentences_stay_masked(directory: Path) -> None:
    data = masked(directory, "valid")
    for number in range(data.batches_per_epoch):
        assert same(data(1, number), data(9, number + data.batches_per_epoch))
    data = masked(directory, max_tokens=4000)  # one batch
    first, second = data(1, 0), data(1, 1)
    assert not torch.equal(first["target"] != PADDING, second["target"] != PADDING)


def test_a_batch_without_words_and_a_long_sentence(tmp_path: Path) -> None:
    write_sentences(tmp_path)
    for rows in ([[2]], [[7] * 700 + [2]]):
        for language in ("fr", "it"):
            write_mmap(tmp_path / f"train.fr-it.{language}", rows, 20)
        batch = masked(tmp_path, max_tokens=1000)(1, 0)
        assert batch["input"].shape == batch["target"].shape == (1, min(512, len(rows[0])))
        assert (batch["target"] != PADDING).any()


def test_info_record_and_names(directory: Path) -> None:
    data = open_data(f"masked:fairseq:{directory}", max_tokens=30)
    assert isinstance(data, MaskedWords)
    assert data.info == {"vocabulary": MASK + 1, "padding": PADDING}
    record = json.loads(json.dumps(data.record))
    assert record["name"] == "masked:fairseq"
    assert record["masking"]["chosen"] == 0.15
    assert len(data) == record["counts"]["pairs"] == 40
    with pytest.raises(ConfigError, match="'masked:digits': expected masked: before one of en-de"):
        open_data("masked:digits")
    with pytest.raises(ConfigError, match="takes max_tokens, not batch_size"):
        open_data("masked:en-de-2k", batch_size=3)
    with pytest.raises(ConfigError, match="unknown data set 'nope'"):
        prepare("masked:nope")


def test_preparing_them_prepares_their_sentences(help_packages: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    made = prepare("masked:en-de-2k", root=root, source=help_packages)
    assert made == root / "en-de-2k"
    record = open_data("masked:en-de-2k", root=root, split="valid").record
    assert (record["name"], record["split"]) == ("masked:en-de-2k", "valid")
