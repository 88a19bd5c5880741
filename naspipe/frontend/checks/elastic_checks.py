"""What users say of elastic layers, checked before a start."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, signature
from typing import Any

from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.space import Elastic, Space
from naspipe.config.text import did_you_mean
from naspipe.runtime.sketching.layer_sizes import sketch


def check_settings(space: Space) -> None:
    """Each setting must be one that the layer's module, or its ``apply``, is called with.

    Raises:
        ConfigError: for the first that is not.
    """
    for position, block in enumerate(space.blocks):
        if isinstance(block, Elastic):
            _check(block, sketch(space, position, 0))


def _check(block: Elastic, module: nn.Module) -> None:
    kind = type(module).__name__
    if block.apply is None:
        who, known = f"its {kind}", _taken(module, module.forward)
    else:
        who = f"its apply={getattr(block.apply, '__name__', type(block.apply).__name__)}"
        known = _keywords(block.apply)
    if known is None:
        return
    for setting in block.settings:
        if setting not in known:
            raise ConfigError(
                f"elastic layer {block.name}: expected settings that {who} takes, "
                f"{', '.join(known) or 'which takes none'}, found {setting!r}"
                f"{did_you_mean(setting, known)}"
            )
    if block.apply is None and hasattr(module, "takes"):
        for setting in known:
            if setting not in block.settings:
                raise ConfigError(
                    f"elastic layer {block.name}: expected values of every setting that its "
                    f"{kind} takes, found none of {setting!r}"
                )


def _taken(module: nn.Module, forward: Any) -> Sequence[str] | None:
    """The settings of a layer of naspipe's, which says them, or those of any other."""
    said: Sequence[str] | None = getattr(module, "takes", None)
    return _keywords(forward) if said is None else said


def _keywords(function: Any) -> Sequence[str] | None:
    """What a function may be called with by name; None where that is anything, or not known."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return None
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in named]
