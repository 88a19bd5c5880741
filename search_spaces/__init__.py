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


def cuts(name: str) -> tuple[int, ...]:
    """Positions of the chain at which a plain network is cut to teach block by block.

    They are where its second block begins, its third one, and so on; none where nobody has said.

    Raises:
        ConfigError: for a name that does not exist, or that of a space.
    """
    if name not in _NETWORKS:
        raise unknown("network", name, networks())
    found: tuple[int, ...] = getattr(_NETWORKS[name], "cuts", lambda _: ())(name)
    return found


def student_names() -> tuple[str, ...]:
    """Named students of a teacher that teaches block by block."""
    return tuple(_students.KINDS)


def student_kind(name: str) -> StudentKind:
    """Whom a student learns from, by which losses, and how.

    Raises:
        ConfigError: for a name that does not exist.
    """
    if name not in _students.KINDS:
        raise unknown("student", name, student_names())
    return _students.KINDS[name]


def students_of(teacher: str, name: str, scale: str, info: Mapping[str, int]) -> list[Space]:
    """The student ``name`` of a network: a space for each block that the network is cut into.

    Every path of a space puts out what that block of the teacher does, in its shapes.

    Args:
        teacher: one of :func:`networks`.
        name: one of :func:`student_names`.
        scale: of both.
        info: what the data state, as for :func:`build`.

    Raises:
        ConfigError: for a name or scale that does not exist, a teacher that is none of the
            student's, or missing ``info``.
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
