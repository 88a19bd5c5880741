"""Beam search against all sentences there are, and BLEU of what it finds."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.data.fairseq import EOS, PADDING
from naspipe.export.assembly import ChainLayer, ModuleChain
from naspipe.export.translation import BeamOptions, translate, words_of

WORDS = (EOS, 4, 5, 6)
VOCABULARY = 7


class Source(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8, padding_idx=PADDING)

    def forward(self, source):
        mask = source.eq(PADDING)
        return self.embedding(source).sum(1) / (~mask).sum(1, keepdim=True), mask


class Target(nn.Module):
    """Sees every token before, in order."""

    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(VOCABULARY, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, memory, mask, previous):
        out, _ = self.cell(self.embedding(previous), memory.unsqueeze(0))
        return out


def chain(seed=0):
    torch.manual_seed(seed)
    head = nn.Linear(8, VOCABULARY)
    with torch.no_grad():
        head.weight *= 4
    parts = [
        ("source", ("source",), Source()),
        ("target", ("previous",), Target()),
        ("head", (), head),
    ]
    return ModuleChain(
        (), tuple(ChainLayer(n, n, fields, m.eval(), True) for n, fields, m in parts)
    )


def batch():
    rows = [[4, 5, 6, EOS], [PADDING, 6, 6, EOS], [PADDING, PADDING, 5, EOS]]
    return {"source": torch.tensor(rows)}


def log_probability(subnet, source, tokens):
    """Of a sentence; tokens outside of WORDS that naspipe never says have no part in it."""
    fields = {"source": source, "previous": torch.tensor([[EOS, *tokens[:-1]]])}
    words = subnet(fields)[0][0].log_softmax(-1)
    return float(sum(words[place, token] for place, token in enumerate(tokens)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_of_every_prefix_finds_the_best_of_all_sentences(seed, penalty):
    subnet, limit = chain(seed), 3
    options = BeamOptions(beams=VOCABULARY**limit, length_penalty=penalty, longest=(0.0, limit))
    found = translate(subnet, batch(), options)
    spoken = [token for token in range(VOCABULARY) if token not in (0, PADDING, EOS)]
    with torch.no_grad():
        for row, source in enumerate(batch()["source"]):
            scores = {}
            for length in range(limit):
                for words in product(spoken, repeat=length):
                    value = log_probability(subnet, source[None], (*words, EOS))
                    scores[words] = value / (length + 1) ** penalty
            for words in product(spoken, repeat=limit):  # cut off at the limit
                scores[words] = log_probability(subnet, source[None], words) / limit**penalty
            assert scores[found[row]] == pytest.approx(max(scores.values()), abs=1e-5)


def test_one_beam_takes_the_likeliest_word_each_time():
    subnet, options = chain(3), BeamOptions(beams=1, longest=(1.0, 3))
    found = translate(subnet, batch(), options)
    for row, source in enumerate(batch()["source"]):
        tokens = []
        with torch.no_grad():
            while len(tokens) < int(source.ne(PADDING).sum()) + 3:
                fields = {"source": source[None], "previous": torch.tensor([[EOS, *tokens]])}
                words = subnet(fields)[0][0, -1].log_softmax(-1)
                words[[0, PADDING]] = -torch.inf
                if int(words.argmax()) == EOS:
                    break
                tokens.append(int(words.argmax()))
        assert found[row] == tuple(tokens)


def test_more_beams_are_never_less_likely_and_every_call_is_alike():
    subnet = chain(1)
    narrow, wide = (
        translate(subnet, batch(), BeamOptions(beams=k, length_penalty=0.0, longest=(0.0, 4)))
        for k in (1, 64)
    )
    with torch.no_grad():
        for row, source in enumerate(batch()["source"]):
            one, other = (
                log_probability(subnet, source[None], (*words, EOS)[:4])
                for words in (narrow[row], wide[row])
            )
            assert other >= one - 1e-6
    again = translate(subnet, batch(), BeamOptions(beams=64, length_penalty=0.0, longest=(0.0, 4)))
    assert again == wide


def test_subwords_become_words():
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "Haus@@", "tür", "."]
    assert words_of([4, 5, 6, EOS, PADDING], symbols) == "Haustür ."
    assert words_of([5, 4], symbols) == "tür Haus"


def test_only_translations_are_decoded():
    head = ChainLayer("head", "head", ("input",), nn.Linear(2, 2), True)
    with pytest.raises(ConfigError, match="expected a translation space"):
        translate(ModuleChain((), (head,)), {"input": torch.zeros(1, 2)}, BeamOptions())
    with pytest.raises(ConfigError, match="beams: expected 1 or more"):
        BeamOptions(beams=0)
