"""Batches of translation data are a pure function of (seed, sequence ID)."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from naspipe.config.errors import ConfigError, DataError
from naspipe.data.fairseq import write_dictionary, write_mmap
from naspipe.data.text import TranslationData

from .conftest import write_sentences


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_sentences(tmp_path)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_same_batch_whatever_was_asked_before(directory: Path) -> None:
    data = TranslationData(directory, 30)
    count = 4 * data.batches_per_epoch
    expected = {(seed, n): data(seed, n) for seed in (1, 2) for n in range(count)}
    keys = list(expected)
    random.Random(0).shuffle(keys)
    other = TranslationData(directory, 30)
    assert all(same(other(*key), expected[key]) for key in keys)
    assert not same(expected[1, 0], expected[2, 0])


def test_batches_are_fresh_tensors(directory: Path) -> None:
    data = TranslationData(directory, 30)
    first = data(1, 0)
    first["source"].zero_()
    assert not same(data(1, 0), first)
    assert all(tensor.dtype == torch.int64 for tensor in first.values())


def test_global_random_state_is_left_alone(directory: Path) -> None:
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate())
    data = TranslationData(directory, 30)
    for number in range(2 * data.batches_per_epoch):
        data(3, number)
    after = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate())
    assert after == before


def test_shapes_and_limit(directory: Path) -> None:
    data = TranslationData(directory, 30)
    rows = 0
    for number in range(data.batches_per_epoch):
        batch = data(1, number)
        assert batch["previous"].shape == batch["target"].shape
        assert len(batch["source"]) == len(batch["target"])
        width = max(batch["source"].shape[1], batch["target"].shape[1])
        assert width * len(batch["source"]) <= 30
        rows += len(batch["source"])
    assert rows == len(data) == 40


def test_info_and_record(directory: Path) -> None:
    data = TranslationData(directory, 30, split="valid")
    assert data.info == {"vocabulary": 20, "padding": 1}
    record = json.loads(json.dumps(data.record))
    assert record["counts"]["pairs"] == 7
    assert record["split"] == "valid"
    assert len(record["sha256"]) == 6
    assert str(directory) not in json.dumps(record)


def test_valid_keeps_its_order(directory: Path) -> None:
    data = TranslationData(directory, 30, split="valid")
    for number in range(data.batches_per_epoch):
        assert same(data(1, number), data(9, number + data.batches_per_epoch))


def test_directories_that_do_not_fit(directory: Path) -> None:
    with pytest.raises(DataError, match=r"named test\.SRC-TGT\.SRC\.idx and so on, found none"):
        TranslationData(directory, 30, split="test")
    with pytest.raises(DataError, match="expected a directory"):
        TranslationData(directory / "nowhere", 30)
    with pytest.raises(ConfigError, match="count from 0"):
        TranslationData(directory, 30)(1, -1)
    write_mmap(directory / "train.de-en.de", [[2]], 20)
    with pytest.raises(DataError, match="found de-en, fr-it"):
        TranslationData(directory, 30)


def test_sides_of_different_length(directory: Path) -> None:
    write_mmap(directory / "train.fr-it.it", [[4, 2]], 20)
    with pytest.raises(DataError, match=r"has 40 sentences, train.fr-it.it has 1"):
        TranslationData(directory, 30)


def test_tokens_beyond_the_dictionary(directory: Path) -> None:
    write_dictionary(directory / "dict.it.txt", [("w", 1)])
    with pytest.raises(DataError, match=r"train.fr-it.it.bin: expected tokens 0 to 4"):
        TranslationData(directory, 30)


def test_no_sentence_at_all(directory: Path) -> None:
    for language in ("fr", "it"):
        write_mmap(directory / f"train.fr-it.{language}", [], 20)
    with pytest.raises(DataError, match="expected sentences, found none"):
        TranslationData(directory, 30)
