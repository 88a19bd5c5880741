"""Data sets by name, small ones made here and the real ones."""

from __future__ import annotations

import argparse
import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from naspipe.cli import data as data_cli
from naspipe.config.errors import ConfigError, DataError
from naspipe.data import Entry, ImageData, TranslationData, open_data, prepare, registry
from naspipe.data.fairseq import read_dictionary
from naspipe.data.images import ArraySource

from .conftest import write_package


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    data_cli.add_arguments(parser)
    return data_cli.run(parser.parse_args(words))


def test_unknown_names() -> None:
    for name in ("nope", "fairseq:", "en-de-2k:x", ""):
        with pytest.raises(ConfigError, match=r"expected one of en-de-2k, .*, image-folder:DIR"):
            open_data(name)
        with pytest.raises(ConfigError, match="unknown data set"):
            prepare(name)


def test_settings_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes max_tokens, not batch_size"):
        open_data("en-de-2k", batch_size=3)
    with pytest.raises(ConfigError, match="takes batch_size, not max_tokens"):
        open_data("digits", max_tokens=3)
    with pytest.raises(ConfigError, match="expected one of train, valid, test, found 'dev'"):
        open_data("digits", split="dev")
    with pytest.raises(DataError, match="naspipe data prepare fashion-mnist --data-dir"):
        open_data("fashion-mnist", root=tmp_path)
    with pytest.raises(ConfigError, match="needs no preparation"):
        prepare("digits", force=True)
    assert prepare("digits") is None


def test_small_help_packages_end_to_end(help_packages: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    directory = prepare("en-de-2k", root=root, source=help_packages)
    assert directory == root / "en-de-2k"
    data = open_data("en-de-2k", root=root, max_tokens=200)
    assert isinstance(data, TranslationData)
    assert data.info["vocabulary"] % 8 == 0
    assert data.record["version"].count("1:2.3-4") == 2
    english, german = (read_dictionary(directory / f"dict.{name}.txt") for name in ("en", "de"))
    assert english == german

    # A pair of the batch, put together again, is a sentence and its translation.
    batch = data(1, 0)
    texts = [
        " ".join(english[token] for token in row.tolist() if token > 3).replace("@@ ", "")
        for row in (batch["source"][0], batch["target"][0])
    ]
    assert texts[0].startswith("The quick brown fox number")
    assert texts[1].startswith("Der schnelle braune Fuchs Nummer")
    numbers = [[word for word in text.split() if word.isdigit()] for text in texts]
    assert numbers[0] == numbers[1]


def test_same_sources_give_the_same_bytes(help_packages: Path, tmp_path: Path) -> None:
    records = []
    for root in (tmp_path / "one", tmp_path / "two"):
        prepare("en-de-8k", root=root, source=help_packages)
        records.append(open_data("en-de-8k", root=root, split="valid").record)
    assert records[0] == records[1]


def write_fashion(root: Path, label: int = 9) -> None:
    write_package(root, "dataset-fashion-mnist", {})
    folder = root / "usr/share/datasets/fashion-mnist"
    folder.mkdir(parents=True)
    for prefix, number in (("train", 6), ("t10k", 4)):
        pixels = bytes(range(number * 4))
        images = bytes([0, 0, 8, 3]) + struct.pack(">3I", number, 2, 2) + pixels
        labels = bytes([0, 0, 8, 1]) + struct.pack(">I", number) + bytes([label] * number)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def test_small_fashion_mnist(tmp_path: Path) -> None:
    write_fashion(tmp_path / "package")
    prepare("fashion-mnist", root=tmp_path / "cache", source=tmp_path / "package")
    sizes = []
    for split in ("train", "valid", "test"):
        data = open_data("fashion-mnist", root=tmp_path / "cache", batch_size=3, split=split)
        sizes.append(len(data))
        assert data(1, 0)["input"].shape[1:] == (1, 2, 2)
    assert sizes == [6, 2, 2]


def test_fashion_mnist_with_a_wrong_label(tmp_path: Path) -> None:
    write_fashion(tmp_path / "package", label=10)
    with pytest.raises(DataError, match="expected one label of 0 to 9 for each image of train"):
        prepare("fashion-mnist", root=tmp_path / "cache", source=tmp_path / "package")
    assert list((tmp_path / "cache").iterdir()) == []


def test_command_line(
    help_packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--data-dir", str(tmp_path / "cache"))
    assert command("list", *place) == 0
    listed = capsys.readouterr().out
    assert "en-de-2k" in listed and "not prepared" in listed
    assert command("prepare", "en-de-2k", "--from", str(help_packages), *place) == 0
    shown = capsys.readouterr()
    assert "ready in" in shown.out and "vocabulary" in shown.out
    assert "learn subwords" in shown.err
    made = (tmp_path / "cache" / "en-de-2k").stat().st_ino
    assert command("prepare", "en-de-2k", *place) == 0  # nothing is fetched or built again
    assert (tmp_path / "cache" / "en-de-2k").stat().st_ino == made
    assert capsys.readouterr().err == ""
    assert command("prepare", "digits", *place) == 0
    assert "needs no preparation" in capsys.readouterr().out
    (tmp_path / "cache" / "en-de-2k" / "codes.bpe").write_text("damaged")
    with pytest.raises(DataError, match=r"codes\.bpe: expected .* --force"):
        command("prepare", "en-de-2k", *place)
    repair = ("prepare", "en-de-2k", "--force", "--from", str(help_packages), *place)
    assert command(*repair) == 0


def test_fairseq_directory_by_name(real_en_de: Path) -> None:
    data = open_data(f"fairseq:{real_en_de}", max_tokens=600)
    assert data.record["name"] == "fairseq"
    assert torch.equal(data(1, 7)["source"], open_data("en-de-2k", max_tokens=600)(1, 7)["source"])


def test_real_en_de(real_en_de: Path) -> None:
    data = open_data("en-de-2k", max_tokens=600)
    assert isinstance(data, TranslationData)
    assert len(data) > 10_000  # versions float: only roughly
    assert 2_000 < data.info["vocabulary"] < 3_000
    assert data.info["vocabulary"] % 8 == 0
    unknown = total = rows = 0
    for number in range(data.batches_per_epoch):
        batch = data(1, number)
        rows += len(batch["target"])
        unknown += int((batch["target"] == 3).sum())
        total += int((batch["target"] > 2).sum())
        assert int((batch["target"] == 2).sum()) == len(batch["target"])
    assert rows == len(data)
    assert unknown < total / 1000
    json.dumps(data.record)
    for split in ("valid", "test"):
        held_out = open_data("en-de-2k", max_tokens=600, split=split)
        assert len(held_out) > 100


def test_real_fashion_mnist(real_fashion_mnist: Path) -> None:
    data = open_data("fashion-mnist", batch_size=500)
    assert isinstance(data, ImageData)
    assert data.info == {"channels": 1, "height": 28, "width": 28, "classes": 10}
    assert len(data) == 60_000
    batches = [data(1, number) for number in range(0, data.batches_per_epoch, 10)]
    images = torch.cat([batch["input"] for batch in batches])
    assert abs(float(images.mean())) < 0.03
    assert abs(float(images.std()) - 1) < 0.03
    seen = torch.cat([batch["target"] for batch in batches])
    assert np.bincount(seen.numpy(), minlength=10).min() > 400


class Point:
    value = "theirs:DATA"

    def __init__(self, *entries: object) -> None:
        self.load = lambda: entries


def test_data_sets_of_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*points: Point) -> None:
        registry._table.cache_clear()
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)

    def opened(place: Path, batch_size: int, split: str, record: dict[str, object]) -> ImageData:
        record = {**record, "place": str(place)}
        source = ArraySource(np.zeros((5, 2, 2), np.uint8), np.arange(5), 0.0, 1.0)
        return ImageData(source, batch_size, info={}, record=record, split=split)

    try:
        found(Point(Entry("theirs:DIR", "images of theirs", "image", open=opened)))
        assert open_data(f"theirs:{tmp_path}", batch_size=2).record["place"] == str(tmp_path)
        assert command("list") == 0 and "images of theirs" in capsys.readouterr().out
        found(Point(Entry("digits", "other digits", "image")))
        with pytest.raises(ConfigError, match=r"theirs:DATA .* a data set 'digits' already"):
            registry.entries()
        assert len(open_data("digits")), "a package that is broken leaves naspipe's own data alone"
        found(Point("digits"))
        with pytest.raises(ConfigError, match=r"expected data sets \(Entry\), found 'digits'"):
            open_data("theirs")
    finally:
        registry._table.cache_clear()
