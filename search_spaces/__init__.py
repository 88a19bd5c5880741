"""The search spaces that come with naspipe, by name and scale; imports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from naspipe.config.errors import ConfigError
from naspipe.config.rules import Rule
from naspipe.config.space import Space
from search_spaces.common import SCALES, Defaults, require, shared_rules, unknown
from search_spaces.cv import spec as _cv
from search_spaces.networks import spec as _image_networks
from search_spaces.networks.bert import spec as _bert
from search_spaces.networks.mobile import spec as _mobile
from search_spaces.networks.mobile_v3 import spec as _mobile_v3
from search_spaces.networks.taught import spec as _taught
from search_spaces.networks.views import spec as _views
from search_spaces.nlp import spec as _nlp
from search_spaces.students import catalogue as _students
from search_spaces.students.kind import StudentKind

__all__ = [
    "SCALES", "Defaults", "StudentKind", "build", "candidate_names", "cuts", "defaults", "names",
    "networks", "student_kind", "student_names", "students_of",
]  # fmt: skip

_SPECS: dict[str, ModuleType] = {
    name: module for module in (_nlp, _cv) for name in module.CANDIDATES.variants
}
_NETWORK_SPECS = (_image_networks, _bert, _taught, _views, _mobile, _mobile_v3)
_NETWORKS: dict[str, ModuleType] = {
    name: module for module in _NETWORK_SPECS for name in module.NAMES
}


def names() -> tuple[str, ...]:
    """Return the names of all spaces with choices, the largest of each family first."""
    return tuple(_SPECS)


def networks() -> tuple[str, ...]:
    """Return the names of all plain networks."""
    return tuple(_NETWORKS)


def build(
    name: str,
    scale: str,
    info: Mapping[str, int],
    rules: Mapping[str, Rule] | None = None,
) -> Space:
    """Return the space ``name`` at ``scale`` for data that describe themselves by ``info``.

    Args:
        name: one of :func:`names` or :func:`networks`.
        scale: one of :data:`SCALES`.
        info: ``vocabulary`` and ``padding`` for text; ``channels``, ``height``, ``width`` and
            ``classes`` for images.
        rules: rules of shared layers, by name, that replace the space's own.

    Raises:
        ConfigError: for an unknown name, scale or shared layer, or missing ``info``.
    """
    spec = _spec(name, scale)
    require(name, info, spec.INFO)
    return Space(name, spec.chain(name, scale, info, shared_rules(name, spec.SHARED_RULES, rules)))


def defaults(name: str, scale: str) -> Defaults:
    """Return the default data, batch, loss and optimizer of ``name`` at ``scale``.

    Raises:
        ConfigError: for an unknown name or scale.
    """
    chosen: Defaults = _spec(name, scale).defaults(name, scale)
    return chosen


def cuts(name: str) -> tuple[int, ...]:
    """Return the positions at which a plain network's chain is cut for blockwise distillation.

    They are the starts of its second block, its third one, and so on; empty if none are defined.

    Raises:
        ConfigError: for an unknown name, or that of a space with choices.
    """
    if name not in _NETWORKS:
        raise unknown("network", name, networks())
    found: tuple[int, ...] = getattr(_NETWORKS[name], "cuts", lambda _: ())(name)
    return found


def student_names() -> tuple[str, ...]:
    """Return the names of the students for blockwise distillation."""
    return tuple(_students.KINDS)


def student_kind(name: str) -> StudentKind:
    """Return the teachers of a student, its losses, and how it is trained.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in _students.KINDS:
        raise unknown("student", name, student_names())
    return _students.KINDS[name]


def students_of(teacher: str, name: str, scale: str, info: Mapping[str, int]) -> list[Space]:
    """Return the student ``name`` of a network: a space for each block of the cut network.

    The outputs of every path of a space have the shapes of the teacher block's outputs.

    Args:
        teacher: one of :func:`networks`.
        name: one of :func:`student_names`.
        scale: scale of both.
        info: values that the data state, as for :func:`build`.

    Raises:
        ConfigError: for an unknown name or scale, a teacher that the student cannot learn from, or
            missing ``info``.
    """
    kind = student_kind(name)
    if teacher not in kind.teachers:
        raise ConfigError(
            f"student {name}: expected a teacher of {', '.join(kind.teachers)}, found {teacher}"
        )
    require(teacher, info, _spec(teacher, scale).INFO)
    chains = kind.chains(teacher, scale, info)
    return [Space(f"{name}-{number}", blocks) for number, blocks in enumerate(chains)]


def candidate_names(name: str) -> tuple[str, ...]:
    """Return a description of each candidate of a block of ``name``; it is the same for all blocks.

    Raises:
        ConfigError: for an unknown name, or that of a plain network.
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
