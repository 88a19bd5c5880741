"""Parts of a language model of many sizes, for the example of elastic text."""

from __future__ import annotations

import torch
from torch import nn


class Words(nn.Module):
    """Features of words and of their places; a setting is handed on, and never kept.

    Args:
        words: an elastic embedding of each word.
        places: one of each place in a sentence.
    """

    def __init__(self, words: nn.Module, places: nn.Module) -> None:
        super().__init__()
        self.words, self.places = words, places

    def forward(self, input: torch.Tensor, **settings: int) -> torch.Tensor:
        """Words (B, S) to features (B, S, width)."""
        places = torch.arange(input.shape[1], device=input.device)
        return self.words(input, **settings) + self.places(places, **settings)

    def cut(self, **settings: int) -> nn.Module:
        """One of fixed sizes."""
        return Words(self.words.cut(**settings), self.places.cut(**settings))


class ClassesFirst(nn.Module):
    """(B, S, words) to (B, words, S), as torch's cross entropy takes them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The same numbers."""
        return input.transpose(1, 2)
