"""The search spaces that come with naspipe, by name and scale; imports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from naspipe.core.rules import Rule
from naspipe.core.space import Space
from search_spaces.common import SCALES, Defaults, require, shared_rules, unknown
from search_spaces.cv import spec as _cv
from search_spaces.networks import spec as _image_networks
from search_spaces.networks.bert import spec as _bert
from search_spaces.networks.taught import spec as _taught
from search_spaces.networks.views import spec as _views
from search_spaces.nlp import spec as _nlp

__all__ = ["SCALES", "Defaults", "build", "candidate_names", "defaults", "names", "networks"]

_SPECS: dict[str, ModuleType] = {
    name: module for module in (_nlp, _cv) for name in module.CANDIDATES.variants
}
_NETWORKS: dict[str, ModuleType] = {
    name: module for module in (_image_networks, _bert, _taught, _views) for name in module.NAMES
}


def names() -> tuple[str, ...]:
    """The name of every space with something to choose, largest of its family first."""
    return tuple(_SPECS)


def networks() -> tuple[str, ...]:
    """The name of every plain network."""
    return tuple(_NETWORKS)


def build(
    name: str,
    scale: str,
    info: Mapping[str, int],
    rules: Mapping[str, Rule] | None = None,
) -> Space:
    """The space ``name`` at ``scale`` for data that describes itself by ``info``.

    Args:
        name: one of :func:`names` or :func:`networks`.
        scale: one of :data:`SCALES`.
        info: ``vocabulary`` and ``padding`` for text; ``channels``, ``height``, ``width`` and
            ``classes`` for images.
        rules: rules of shared layers, by their name, that replace the space's own.

    Raises:
        ConfigError: for a name, scale or shared layer that does not exist, or missing ``info``.
    """
    spec = _spec(name, scale)
    require(name, info, spec.INFO)
    return Space(name, spec.chain(name, scale, info, shared_rules(name, spec.SHARED_RULES, rules)))


def defaults(name: str, scale: str) -> Defaults:
    """The data, batch, loss and optimizer of ``name`` at ``scale``.

    Raises:
        ConfigError: for a name or scale that does not exist.
    """
    chosen: Defaults = _spec(name, scale).defaults(name, scale)
    return chosen


def candidate_names(name: str) -> tuple[str, ...]:
    """What each candidate of a block of ``name`` is, in words; the same for all its blocks.

    Raises:
        ConfigError: for a name that does not exist, or that of a plain network.
    """
    if name not in _SPECS:
        raise unknown("search space", name, names())
    listed: tuple[str, ...] = _SPECS[name].CANDIDATES.names(name)
    return listed


def _spec(name: str, scale: str) -> ModuleType:
    known = {**_SPECS, **_NETWORKS}
    if name not in known:
        raise unknown("search space", name, tuple(known))
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return known[name]
