"""Data sets: a batch is a pure function of (seed, sequence ID)."""

from __future__ import annotations

from naspipe.data.images import ImageData
from naspipe.data.registry import entries, is_prepared, open_data, prepare
from naspipe.data.text import MaskedWords, TranslationData

__all__ = [
    "ImageData", "MaskedWords", "TranslationData", "entries", "is_prepared", "open_data", "prepare",
]  # fmt: skip
