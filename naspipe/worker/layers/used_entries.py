"""The entries of an elastic layer's parameters that a setting uses: those in its cut module.

Every entry of a copy of the layer is set to a unique number, and the copy is cut. The numbers in
the cut module identify the used entries.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from functools import lru_cache

import torch
from torch import nn

from naspipe.config.blocks import Elastic
from naspipe.config.errors import ConfigError

_PATTERNS = 2**27
"""Number of float32 patterns from 2**-9 to 2**7, the maximum number of distinguishable entries."""
_LEAST = 0x3B000000
_STRIDE, _START = 0x1E3779B1, 0x2F2B3C1
"""Neighbouring entries get distant patterns, so that values computed from them match no entry."""
_MOST_KEPT = 64
"""Number of settings whose entries are cached."""
_LOOKED_AT = 1000
"""Number of different sets of options whose gradients are checked."""

Entries = Mapping[str, torch.Tensor]
"""Bool tensors of the parameters' shapes, by name, in host memory."""


class UsedEntries:
    """The used entries of one layer, whose ``module`` is in host memory."""

    def __init__(self, block: Elastic, module: nn.Module) -> None:
        self._block = block
        sizes = {name: each.numel() for name, each in module.named_parameters()}
        self._num_entries = sum(sizes.values())
        if self._num_entries > _PATTERNS:
            raise ConfigError(
                f"elastic layer {block.name}: expected at most {_PATTERNS:,} entries with "
                f'step="slice", found {self._num_entries:,}; use step="whole"'
            )
        self._numbered = copy.deepcopy(module).double()
        with torch.no_grad():
            first = 0
            for parameter in self._numbered.parameters():
                numbers = torch.arange(first, first + parameter.numel())
                parameter.copy_(_written(numbers).view(parameter.shape))
                first += parameter.numel()
        self._sizes = sizes
        self._shapes = {name: each.shape for name, each in module.named_parameters()}
        self._checked: set[frozenset[int]] = set()
        self._of_option = lru_cache(_MOST_KEPT)(self._find)

    def among(
        self, gradients: dict[str, torch.Tensor], options: frozenset[int]
    ) -> dict[str, torch.Tensor]:
        """Return the entries that a step of these options changes, except for whole parameters.

        Gradients of parameters that the step does not change at all are removed.
        """
        entries = self.of(options)
        if options not in self._checked and len(self._checked) < _LOOKED_AT:
            for name, gradient in gradients.items():
                if gradient.cpu().nan_to_num()[~entries[name]].any():
                    raise ConfigError(
                        f"elastic layer {self._block.name}: expected a gradient of {name} only "
                        f'where its cut takes entries, found others; mend cut, or use step="whole"'
                    )
            self._checked.add(options)
        for name in [name for name in gradients if not entries[name].any()]:
            del gradients[name]
        return {
            name: mask for name, mask in entries.items() if name in gradients and not mask.all()
        }

    def of(self, options: Collection[int]) -> Entries:
        """Return the entries that at least one of these options uses."""
        flat = torch.zeros(self._num_entries, dtype=torch.bool)
        for option in options:
            flat[self._of_option(option)] = True
        parts = torch.split(flat, list(self._sizes.values()))
        return {
            name: part.view(self._shapes[name])
            for name, part in zip(self._shapes, parts, strict=True)
        }

    def _find(self, option: int) -> torch.Tensor:
        cut = self._block.cut_of(self._numbered, option)
        found = [torch.empty(0, dtype=torch.int64)]
        for name, parameter in cut.named_parameters():
            numbers = _read(parameter.detach())
            is_known = (numbers >= 0) & (numbers < self._num_entries)
            if not is_known.all() or len(torch.unique(numbers)) < len(numbers):
                raise ConfigError(
                    f"elastic layer {self._block.name}[{self._block.text(option)}]: expected its "
                    f'cut to take entries of parameters as they are, as step="slice" steps those, '
                    f'found {name} to be something else; use step="whole"'
                )
            found.append(numbers)
        return torch.cat(found)


def _written(numbers: torch.Tensor) -> torch.Tensor:
    """Return distinct float32 values for entries with these numbers."""
    patterns = (numbers * _STRIDE + _START) % _PATTERNS + _LEAST
    return patterns.to(torch.int32).view(torch.float32)


def _read(values: torch.Tensor) -> torch.Tensor:
    """Return the flat numbers of the entries with these values; -1 for other values."""
    narrow = values.flatten().to(torch.float32)
    patterns = narrow.view(torch.int32).to(torch.int64) - _LEAST
    numbers = (patterns - _START) % _PATTERNS * pow(_STRIDE, -1, _PATTERNS) % _PATTERNS
    is_one = (patterns >= 0) & (patterns < _PATTERNS) & (narrow == values.flatten())
    return torch.where(is_one, numbers, -1)
