"""Students of a blockwise distillation, by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

import search_spaces
from naspipe.config.errors import ConfigError
from naspipe.config.rules import Rule
from naspipe.config.space import Space
from naspipe.config.user_code import import_attribute, users_code


@dataclass(frozen=True, slots=True)
class Students:
    """Of each block of a teacher, a student; and what they learn by, where that is known."""

    blocks: Sequence[Space | nn.Module]
    loss: Any = None
    """Of every block but the last."""
    last_loss: Any = None

    def with_rules(self, rules: Mapping[str, Rule]) -> Students:
        """The same with other rules for shared layers, by their names.

        Raises:
            ConfigError: when no block has a shared layer of such a name.
        """
        known = [each.shared_rules if isinstance(each, Space) else {} for each in self.blocks]
        names = sorted({name for each in known for name in each})
        for name in rules:
            if name not in names:
                raise ConfigError(
                    f"rule.{name}: expected a shared layer of a student block, "
                    f"{', '.join(names) or 'of which there are none'}, found none called so"
                )
        blocks = [
            each.with_rules({name: rules[name] for name in own.keys() & rules.keys()})
            if isinstance(each, Space)
            else each
            for each, own in zip(self.blocks, known, strict=True)
        ]
        return replace(self, blocks=blocks)


def find_students(name: str, teacher: str | None, scale: str, info: Mapping[str, int]) -> Students:
    """The students that a name stands for.

    ``module:attribute`` is a user's own list of spaces or modules, one for each block of the
    teacher, or a function without arguments that returns one. Its module may have a ``loss`` and a
    ``last_loss``, too.

    Args:
        name: of a student of naspipe's, or as above.
        teacher: the plain network that teaches, where it is one of naspipe's.
        scale: of both.
        info: what the data state.

    Raises:
        ConfigError: for a name that cannot be found, or a teacher that is none of the student's.
    """
    if ":" in name:
        return _own_students(name)
    kind = search_spaces.student_kind(name)
    if teacher is None:
        raise ConfigError(
            f"student {name}: expected a teacher of {', '.join(kind.teachers)}, found a network "
            f"without a name; give --network, if it is one of them"
        )
    blocks = search_spaces.students_of(teacher, name, scale, info)
    return Students(blocks, *(make() if make else None for make in (kind.loss, kind.last_loss)))


def _own_students(name: str) -> Students:
    found = import_attribute(name)
    if callable(found) and not isinstance(found, nn.Module):
        with users_code(f"{name}: expected a list of students, one per teacher block, found"):
            found = found()
    is_list = isinstance(found, Sequence | nn.ModuleList) and not isinstance(found, str)
    blocks = list(found) if is_list else [found]
    for each in blocks:
        if not is_list or not isinstance(each, Space | nn.Module):
            raise ConfigError(
                f"{name}: expected a list of spaces or modules, one per teacher block, found "
                f"{'a list with ' if is_list else ''}{type(each).__name__}"
            )
    module = sys.modules[name.partition(":")[0]]
    return Students(blocks, *(getattr(module, each, None) for each in ("loss", "last_loss")))
