"""Batches of sentence pairs out of a directory that fairseq, or naspipe, has binarised."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from naspipe.config.errors import ConfigError, DataError
from naspipe.data.cache import file_record
from naspipe.data.dictionary import EOS, PADDING, read_dictionary
from naspipe.data.fairseq_batching import BatchPlanner, collate
from naspipe.data.ports import IntArray
from naspipe.data.fairseq_format import TokenFile, open_tokens

_PLANS_KEPT = 4  # subnets in flight may stand on both sides of an epoch's end


class TranslationData:
    """The batch of a sequence ID, as a pure function of (seed, sequence ID).

    Epochs follow each other: with n batches per epoch, sequence ID s is batch s mod n of epoch
    1 + s // n. Train is shuffled as fairseq does it; the other splits keep one order for good.
    """

    def __init__(
        self,
        directory: Path,
        max_tokens: int,
        split: str = "train",
        required_multiple: int = 1,
        *,
        record: dict[str, Any] | None = None,
    ) -> None:
        source, target = find_language_pair(directory, split)
        names = [f"{split}.{source}-{target}.{language}" for language in (source, target)]
        dictionaries = [directory / f"dict.{language}.txt" for language in (source, target)]
        symbols = [read_dictionary(path) for path in dictionaries]
        sizes = list(map(len, symbols))
        self.target_symbols = symbols[1]
        """What each token of the target stands for."""
        self._source, self._target = (
            _open_checked(directory / name, size) for name, size in zip(names, sizes, strict=True)
        )
        self._check_pairing(directory)
        self.info: dict[str, int] = {"vocabulary": max(sizes), "padding": PADDING}
        self.record: dict[str, Any] = record or _record_of(directory, names, dictionaries, sizes)
        self.record = {**self.record, "split": split, "max_tokens": max_tokens}
        self._planner = BatchPlanner(
            self._source.sizes,
            self._target.sizes,
            max_tokens,
            required_multiple,
            shuffle=split == "train",
        )
        self.batches_per_epoch = self._planner.num_batches
        self._plans: OrderedDict[tuple[int, int], list[IntArray]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of sentence pairs."""
        return len(self._source)

    def __call__(self, seed: int, sequence_id: int) -> dict[str, torch.Tensor]:
        """Return fresh int64 tensors source (B, S), previous (B, T) and target (B, T)."""
        if sequence_id < 0:
            raise ConfigError(f"sequence IDs count from 0, got {sequence_id}")
        epoch, place = divmod(sequence_id, self.batches_per_epoch)
        rows = self._plan(seed, epoch + 1)[place].tolist()
        source, previous, target = collate(
            [self._source[row] for row in rows], [self._target[row] for row in rows]
        )
        return {
            "source": torch.from_numpy(source),
            "previous": torch.from_numpy(previous),
            "target": torch.from_numpy(target),
        }

    def _plan(self, seed: int, epoch: int) -> list[IntArray]:
        key = (seed, epoch)
        plan = self._plans.pop(key, None)
        if plan is None:
            plan = self._planner.plan(seed, epoch)
        self._plans[key] = plan
        while len(self._plans) > _PLANS_KEPT:
            self._plans.popitem(last=False)
        return plan

    def _check_pairing(self, directory: Path) -> None:
        if len(self._source) != len(self._target):
            raise DataError(
                f"{directory}: {self._source.prefix.name} has {len(self._source)} sentences, "
                f"{self._target.prefix.name} has {len(self._target)}: they are not one another's "
                f"translation"
            )
        if not len(self._source):
            raise DataError(f"{self._source.prefix}.idx: expected sentences, found none")


def find_language_pair(directory: Path, split: str) -> tuple[str, str]:
    """Return (source, target) of the one pair that ``directory`` has for ``split``."""
    if not directory.is_dir():
        raise DataError(f"{directory}: expected a directory of fairseq-preprocess's, found none")
    pairs = set()
    for path in directory.glob(f"{split}.*-*.*.idx"):
        name = path.name.removeprefix(f"{split}.").removesuffix(".idx")
        languages, _, language = name.rpartition(".")
        source, _, target = languages.partition("-")
        if source and target and language in (source, target):
            pairs.add((source, target))
    if len(pairs) != 1:
        found = ", ".join(f"{source}-{target}" for source, target in sorted(pairs)) or "none"
        raise DataError(
            f"{directory}: expected the files of one language pair named {split}.SRC-TGT.SRC.idx "
            f"and so on, found {found}"
        )
    return pairs.pop()


def _open_checked(prefix: Path, vocabulary: int) -> TokenFile:
    tokens = open_tokens(prefix)
    tokens.check(vocabulary, EOS)
    return tokens


def _record_of(
    directory: Path, names: list[str], dictionaries: list[Path], sizes: list[int]
) -> dict[str, Any]:
    files = [directory / f"{name}{ending}" for name in names for ending in (".bin", ".idx")]
    return {
        "name": "fairseq",
        "source": "files binarised by fairseq",
        "version": "unknown",
        "counts": {
            "pairs": len(open_tokens(directory / names[0])),
            "source_vocabulary": sizes[0],
            "target_vocabulary": sizes[1],
        },
        "sha256": {path.name: file_record(path)["sha256"] for path in [*files, *dictionaries]},
    }
