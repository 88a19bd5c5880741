"""BLEU of a subnet on held-out sentences, by sacrebleu."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from naspipe.config.errors import ConfigError
from naspipe.data.dictionary import EOS, PADDING
from naspipe.export.assembly import ModuleChain, assemble
from naspipe.export.beam import BeamOptions, translate
from naspipe.frontend.given.run import Run
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.jobs.workload import Batches

_JOINED = "@@"
"""Behind a subword that goes on in the next one."""


def check_sacrebleu() -> None:
    """BLEU is counted by the package sacrebleu.

    Raises:
        ConfigError: when it is not installed.
    """
    try:
        import_module("sacrebleu")
    except ImportError as error:
        raise ConfigError(
            "BLEU: expected the package sacrebleu, found none; install naspipe[search]"
        ) from error


def words_of(tokens: Iterable[int], symbols: Sequence[str]) -> str:
    """A sentence's words, its subwords joined; padding and the end left out."""
    pieces = [symbols[token] for token in tokens if token not in (EOS, PADDING)]
    return " ".join(pieces).replace(f"{_JOINED} ", "").removesuffix(_JOINED)


class BleuScorer:
    """Decodes the same held-out batches with any subnet of a run.

    Args:
        run: whose weights.
        held_out: translation data; its ``target_symbols`` are the words.
        batches: how many.
        options: of the beam search.

    Raises:
        ConfigError: when the data are no translations, or sacrebleu is missing.
    """

    def __init__(
        self, run: Run, held_out: Batches, batches: int, options: BeamOptions | None = None
    ) -> None:
        check_sacrebleu()
        symbols = getattr(held_out, "target_symbols", None)
        if not isinstance(symbols, Sequence):
            raise ConfigError(
                "BLEU: expected translation data with the symbols of the target language, found "
                "none; use --score loss or top1"
            )
        definition = run.manifest["definition"]
        self._run = run
        self._symbols = symbols
        self._threads = int(definition["recipe"]["threads"])
        self._options = options or BeamOptions()
        self._batches: list[Mapping[str, torch.Tensor]] = [
            held_out(definition["seed"], number) for number in range(batches)
        ]

    def __call__(self, choices: Sequence[int]) -> float:
        """BLEU of a subnet, from 0 to 100; the same bits at every call."""
        chain = assemble(self._run, choices)
        with deterministic_torch(self._threads):
            return self.of(chain)

    def of(self, chain: ModuleChain) -> float:
        """BLEU of any subnet of the space."""
        found: list[str] = []
        expected: list[str] = []
        for batch in self._batches:
            found += [
                words_of(each, self._symbols) for each in translate(chain, batch, self._options)
            ]
            expected += [words_of(each, self._symbols) for each in batch["target"].tolist()]
        metric: Any = import_module("sacrebleu").BLEU(tokenize="none", force=True)
        return float(metric.corpus_score(found, [expected]).score)
