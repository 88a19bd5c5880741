"""Common parts of the spaces' specifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from naspipe.config.errors import ConfigError
from naspipe.config.rules import Rule

_Operation = TypeVar("_Operation")

SCALES = ("tiny", "small", "paper")
"""Scales of every space; a scale changes widths and batches, never blocks or candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Default settings of a run of a space."""

    data: str
    """Name of the data set."""
    loss: Callable[[], Any]
    """Creates the loss module, which is called with the last block's output and the target."""
    optimizer: str
    """Name of a class of ``torch.optim``."""
    lr: float
    """Learning rate of the first step."""
    optimizer_options: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Other arguments of the optimizer."""
    schedule: str = "constant"
    """Schedule of the learning rate over the sequence ID."""
    max_tokens: int | None = None
    """Padded tokens per batch and side, for text."""
    batch_size: int | None = None
    """Samples per batch, for images."""
    further: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Other settings of the recipe."""


@dataclass(frozen=True, slots=True)
class Candidates(Generic[_Operation]):
    """Every operation with each of a space's activations, numbered activation by activation.

    Therefore candidate k of a space with fewer activations is candidate k of one with more.
    """

    operations: tuple[_Operation, ...]
    activations: tuple[str, ...]
    variants: Mapping[str, int]
    """Number of activations of each space, by its name."""

    def of(self, name: str) -> list[tuple[_Operation, str]]:
        return [
            (operation, activation)
            for activation in self.activations[: self.variants[name]]
            for operation in self.operations
        ]

    def names(self, name: str) -> tuple[str, ...]:
        """Return a description of each candidate."""
        return tuple(f"{operation}, {activation}" for operation, activation in self.of(name))


def unknown(what: str, found: object, known: Sequence[str]) -> ConfigError:
    """Return the error for a name that does not exist; it lists the closest existing name first."""
    close = get_close_matches(str(found), known, n=1, cutoff=0.0)
    listed = [*close, *(name for name in known if name not in close)]
    return ConfigError(f"unknown {what} {found!r}: expected one of {', '.join(listed)}")


def require(space: str, info: Mapping[str, int], keys: Sequence[str]) -> None:
    """Check that the data state ``keys``.

    Raises:
        ConfigError: if one is missing or negative.
    """
    for key in keys:
        if key not in info:
            raise ConfigError(
                f"space {space}: expected the data to state {', '.join(keys)}; "
                f"found {', '.join(sorted(info)) or 'nothing'}; {key} is missing"
            )
        if info[key] < 0:
            raise ConfigError(f"space {space}: expected {key} of 0 or more, found {info[key]}")


def shared_rules(
    space: str, defaults: Mapping[str, Rule], rules: Mapping[str, Rule] | None
) -> dict[str, Rule]:
    """Return the shared layers' rules: ``defaults``, overridden by ``rules``.

    Raises:
        ConfigError: if ``rules`` contains a name that is not a shared layer.
    """
    for name in rules or {}:
        if name not in defaults:
            raise unknown(f"shared layer of space {space}", name, tuple(defaults))
    return {**defaults, **(rules or {})}


def cross_entropy() -> Any:
    from torch import nn

    return nn.CrossEntropyLoss()
