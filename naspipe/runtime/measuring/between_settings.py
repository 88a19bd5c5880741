"""Costs of settings that were not measured, from those of the same layer that were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naspipe.config.space import Elastic, Space
from naspipe.planning.cost import LayerCost

Costs = dict[tuple[int, int], LayerCost]
Floats = NDArray[np.float64]


def with_settings_between(space: Space, costs: Mapping[tuple[int, int], LayerCost]) -> Costs:
    """The costs, and those of every other setting of layers of which some were measured.

    Each figure is taken to be a product of powers of the settings, as that of a width and of a
    kernel is, and to lie among those that were measured.
    """
    found = dict(costs)
    for position, block in enumerate(space.blocks):
        if not isinstance(block, Elastic):
            continue
        known = [option for option in range(block.num_options) if (position, option) in costs]
        missing = [option for option in range(block.num_options) if option not in set(known)]
        if not missing or len(known) < 2:
            continue
        rows = np.array([costs[position, option] for option in known], dtype=np.float64)
        for option, row in zip(missing, _fitted(block, known, rows, missing), strict=True):
            found[position, option] = LayerCost(*map(int, row))
    return found


def _fitted(block: Elastic, known: list[int], rows: Floats, missing: list[int]) -> Floats:
    """By least squares of logarithms; no further from the middle than what was measured."""
    logs = np.log(np.maximum(rows, 1.0))
    factors, *_ = np.linalg.lstsq(_features(block, known), logs, rcond=None)
    guessed: Floats = np.exp(_features(block, missing) @ factors)
    return np.clip(guessed, rows.min(axis=0), rows.max(axis=0))


def _features(block: Elastic, options: list[int]) -> Floats:
    settings = [block.setting(option) for option in options]
    columns = [[_size(block, name, each[name]) for each in settings] for name in block.settings]
    return np.column_stack([np.ones(len(options)), *(np.log(column) for column in columns)])


def _size(block: Elastic, name: str, value: Any) -> float:
    """A number above zero; of what is none, its place in the list."""
    values = block.settings[name]
    is_size = all(isinstance(each, int | float) and each > 0 for each in values)
    return float(value) if is_size else float(values.index(value) + 1)
