"""BLEU scores of subnets of translation spaces, and the latency of whole subnets on this machine.

Beam search uses a subnet as an ordinary module and is plain and exact: every step recomputes the
whole prefix, so that no layer needs to expose a cache of earlier tokens. Sentences are decoded
together, and removed when they are finished. BLEU is computed by sacrebleu.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from statistics import median
from typing import Any, NamedTuple

import torch

from naspipe.config.errors import ConfigError
from naspipe.data.fairseq import BOS, EOS, PADDING
from naspipe.export.assembly import ModuleChain, assemble
from naspipe.inputs.run import Run
from naspipe.jobs.workload import Batches
from naspipe.machine.determinism import deterministic_torch
from naspipe.search.search_directory import Candidate, Search

# Beam search


_PREFIX = "previous"
"""The batch field with the target's tokens before each position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamOptions:
    """Options of the beam search."""

    beams: int = 4
    length_penalty: float = 0.6
    """Scores are divided by length to this power: 0 prefers short sentences."""
    longest: tuple[float, int] = (1.2, 10)
    """(a, b): a translation has at most a times the number of its source's tokens, plus b."""

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ConfigError(f"beams: expected 1 or more, found {self.beams}")


class _Hypothesis(NamedTuple):
    score: float
    tokens: tuple[int, ...]


@dataclass(slots=True)
class _Sentence:
    """The state of one sentence."""

    place: int
    limit: int
    finished: list[_Hypothesis] = field(default_factory=list)

    def best(self) -> tuple[int, ...]:
        """Return the tokens of the best translation; of equal ones, the one that ended first."""
        return max(self.finished, key=lambda each: each.score).tokens


def translate(
    chain: ModuleChain, batch: Mapping[str, torch.Tensor], options: BeamOptions
) -> list[tuple[int, ...]]:
    """Return the best translation of every sentence of a batch, without its end token.

    The subnet reads the fields ``source`` and ``previous``; of the batch only ``source`` is used,
    of shape (B, S) and padded.
    """
    reading = (place for place, layer in enumerate(chain.layers) if _PREFIX in layer.fields)
    split = next(reading, None)
    if split is None or "source" not in chain.inputs:
        raise ConfigError(
            f"BLEU: expected a translation space, whose layers read the fields source and "
            f"{_PREFIX}, found {', '.join(chain.inputs)}"
        )
    with torch.no_grad():
        memory = _run(chain, 0, split, (), batch)
        source = batch["source"]
        a, b = options.longest
        lengths = source.ne(PADDING).sum(1).tolist()
        sentences = [_Sentence(place, int(a * length) + b) for place, length in enumerate(lengths)]
        waiting = _Beam(chain, split, memory, sentences, options)
        while waiting.sentences:
            waiting.advance()
    return [sentence.best() for sentence in sentences]


def _run(
    chain: ModuleChain,
    first: int,
    last: int,
    state: tuple[torch.Tensor, ...],
    fields: Mapping[str, torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    for layer in chain.layers[first:last]:
        result: Any = layer.module(*state, *(fields[name] for name in layer.fields))
        state = result if isinstance(result, tuple) else (result,)
    return state


class _Beam:
    """The unfinished sentences, with ``beams`` prefixes each."""

    def __init__(
        self,
        chain: ModuleChain,
        split: int,
        memory: tuple[torch.Tensor, ...],
        sentences: list[_Sentence],
        options: BeamOptions,
    ) -> None:
        self._chain, self._split, self._options = chain, split, options
        self.sentences = list(sentences)
        count, beams = len(sentences), options.beams
        self._memory = tuple(each.repeat_interleave(beams, 0) for each in memory)
        self._tokens = torch.full((count, beams, 1), EOS, dtype=torch.int64)
        self._scores = torch.full((count, beams), -torch.inf)
        self._scores[:, 0] = 0.0  # all prefixes are equal at first: one is enough

    def advance(self) -> None:
        """Extend every prefix by one token, and remove sentences that are finished."""
        count, beams, length = self._tokens.shape
        fields = {_PREFIX: self._tokens.flatten(0, 1)}
        logits = _run(self._chain, self._split, len(self._chain.layers), self._memory, fields)[0]
        words = logits[:, -1].float().log_softmax(-1)
        words[:, [BOS, PADDING]] = -torch.inf
        total = (self._scores.flatten().unsqueeze(1) + words).view(count, -1)
        scores, places = total.topk(2 * beams, dim=1)
        origin = torch.div(places, words.size(1), rounding_mode="floor")
        chosen = places % words.size(1)
        lists = zip(scores.tolist(), chosen.tolist(), origin.tolist(), strict=True)
        kept = [self._sort(row, *each, length) for row, each in enumerate(lists)]
        rows = [row for row, going in enumerate(kept) if going is not None]
        self.sentences = [self.sentences[row] for row in rows]
        if not rows:
            return
        going = torch.tensor([each for each in kept if each is not None])
        row_index = torch.tensor(rows)
        picked = origin[row_index].gather(1, going)
        prefixes = self._tokens[row_index.unsqueeze(1), picked]
        added = chosen[row_index].gather(1, going)
        self._tokens = torch.cat([prefixes, added.unsqueeze(-1)], -1)
        self._scores = scores[row_index].gather(1, going)
        memory_rows = (row_index.unsqueeze(1) * beams + torch.arange(beams)).flatten()
        if len(rows) < count:
            self._memory = tuple(each[memory_rows] for each in self._memory)

    def _sort(
        self, row: int, scores: list[float], words: list[int], origin: list[int], length: int
    ) -> list[int] | None:
        """Return the places that continue one sentence, the best first; None if it is finished."""
        sentence, beams = self.sentences[row], self._options.beams

        def finish(place: int, *more: int) -> None:
            prefix = tuple(self._tokens[row, origin[place], 1:].tolist())
            value = scores[place] / length**self._options.length_penalty
            sentence.finished.append(_Hypothesis(value, (*prefix, *more)))

        going = [place for place, word in enumerate(words) if word != EOS][:beams]
        for place, word in enumerate(words[:beams]):
            if word == EOS and scores[place] > -torch.inf:
                finish(place)
        if len(sentence.finished) >= beams:
            return None
        if length >= sentence.limit:
            for place in going[: beams - len(sentence.finished)]:
                finish(place, words[place])
            return None
        return going


# BLEU


_JOINED = "@@"
"""Follows a subword that the next one continues."""


def check_sacrebleu() -> None:
    """Raise unless the package sacrebleu is installed."""
    try:
        import_module("sacrebleu")
    except ImportError as error:
        raise ConfigError(
            "BLEU: expected the package sacrebleu, found none; install naspipe[search]"
        ) from error


def words_of(tokens: Iterable[int], symbols: Sequence[str]) -> str:
    """Return a sentence's words, its subwords joined; padding and the end token are omitted."""
    pieces = [symbols[token] for token in tokens if token not in (EOS, PADDING)]
    return " ".join(pieces).replace(f"{_JOINED} ", "").removesuffix(_JOINED)


class BleuScorer:
    """Decodes the same held-out batches with any subnet of a run.

    Args:
        run: the run that provides the weights.
        held_out: translation data; its ``target_symbols`` are the words.
        batches: number of batches.
        options: options of the beam search.

    Raises:
        ConfigError: if the data are not translations, or if sacrebleu is missing.
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
        """Return the BLEU of a subnet, from 0 to 100; every call returns the same bits."""
        chain = assemble(self._run, choices)
        with deterministic_torch(self._threads):
            return self.of(chain)

    def of(self, chain: ModuleChain) -> float:
        found: list[str] = []
        expected: list[str] = []
        for batch in self._batches:
            found += [
                words_of(each, self._symbols) for each in translate(chain, batch, self._options)
            ]
            expected += [words_of(each, self._symbols) for each in batch["target"].tolist()]
        metric: Any = import_module("sacrebleu").BLEU(tokenize="none", force=True)
        return float(metric.corpus_score(found, [expected]).score)


# Latency, of any space


_ROUNDS = 5


def measure_top(
    run: Run, search: Search, candidates: Sequence[Candidate], data: Batches
) -> dict[int, float]:
    """Return the milliseconds of each subnet's forward on one batch, and record them in the search.

    The values are medians; the subnets are measured in turn, so that a slow moment of the machine
    affects all.
    """
    definition = run.manifest["definition"]
    batch = data(definition["seed"], 0)
    with deterministic_torch(definition["recipe"]["threads"]), torch.no_grad():
        chains = {each.sequence_id: assemble(run, each.choices) for each in candidates}
        samples: dict[int, list[float]] = {number: [] for number in chains}
        for _ in range(_ROUNDS + 1):
            for number, chain in chains.items():
                before = time.perf_counter()
                chain(batch)
                samples[number].append(1e3 * (time.perf_counter() - before))
    found = {number: median(times[1:]) for number, times in samples.items()}
    search.note(latency_ms={str(number): ms for number, ms in found.items()})
    return found
