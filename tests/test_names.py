"""What things are called: one word for one idea."""

from __future__ import annotations

import re

from tests.test_architecture import ROOT, product

OTHER_WORDS = {
    r"block[ _]steps?": "an access: a step is made of passes and ends in an optimizer step",
    r"(forward|backward)[ _]pass\b": "a forward, a backward: a pass is both",
    r"per[- ]step loss": "the loss of a pass",
    r"compute[ _]stream": "a GPU's queue: a stream is the list of subnets",
}
"""Phrases that use *step*, *pass* or *stream* for something else: to what to say instead."""


def wrong_words(text: str) -> list[str]:
    """What to say instead, for each phrase on one line of a text, whatever its case."""
    return [say for phrase, say in OTHER_WORDS.items() if re.search(phrase, text, re.IGNORECASE)]


def test_step_pass_and_stream_mean_one_thing_each() -> None:
    texts = {path: (ROOT / path).read_text("utf-8") for path in product()}
    assert {path: found for path, text in texts.items() if (found := wrong_words(text))} == {}


def test_wrong_words_are_seen() -> None:
    assert len(wrong_words("the Forward pass of block_steps")) == 2
    assert wrong_words("a forward passes on what the block hands it in one step") == []
