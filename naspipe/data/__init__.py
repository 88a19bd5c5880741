"""Data sets by name, whose batches are a pure function of the seed and the sequence ID."""

from __future__ import annotations

from naspipe.data.cache import Entry
from naspipe.data.images import ImageData
from naspipe.data.registry import entries, is_prepared, open_data, prepare
from naspipe.data.text import MaskedWords, TranslationData

__all__ = [
    "Entry",
    "ImageData",
    "MaskedWords",
    "TranslationData",
    "entries",
    "is_prepared",
    "open_data",
    "prepare",
]
