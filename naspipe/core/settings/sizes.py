"""Sizes as users write them: ``512MiB``, ``3x``."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1} | {
    name: base**power
    for power, letter in enumerate("kmgt", 1)
    for name, base in ((f"{letter}ib", 1024), (f"{letter}b", 1000), (letter, 1024))
}


def parse_bytes(text: str) -> int:
    """Bytes from ``512MiB``, ``2GB`` or ``4096``; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text.strip().lower())
    return int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0


def parse_subnets(text: str) -> float:
    """A number of subnets from ``3x`` or ``1.5x``; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x", text.strip().lower())
    return float(match[1]) if match else 0.0
