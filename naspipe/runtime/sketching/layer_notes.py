"""Lines about what layers do and a run does not keep: counting, parts in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from naspipe.core.space import Space
from naspipe.runtime.layers.kept_state import TORCHS
from naspipe.runtime.sketching.sketched import SketchedLayers

_NUMBERS = (bool, int, float, str)

Numbers = dict[tuple[str, str], Any]
"""By the name of a part and of its attribute."""


def numbers_of(module: nn.Module) -> Numbers:
    """All plain numbers and texts of a module and its parts; those that torch keeps left out."""
    return {
        (part, name): value
        for part, each in module.named_modules()
        for name, value in vars(each).items()
        if name not in TORCHS and type(value) in _NUMBERS
    }


def counting(module: nn.Module, before: Numbers, again: Callable[[], object]) -> str:
    """The attribute that another forward changes again; a text without one.

    What is kept of the first call only, such as a length, changes once.

    Args:
        module: one forward of which has been computed.
        before: its numbers before that.
        again: computes the same forward once more.
    """
    first = numbers_of(module)
    changed = [each for each, value in first.items() if before.get(each, value) != value]
    if not changed:
        return ""
    again()
    second = numbers_of(module)
    return next((".".join(filter(None, n)) for n in changed if second.get(n) != first[n]), "")


def counting_note(space: Space, found: Mapping[tuple[int, int], str]) -> str | None:
    """A line about the first such layer; None where there is none."""
    if not found:
        return None
    (block, candidate), attribute = min(found.items())
    more = f" (and {len(found) - 1} more layers)" if len(found) > 1 else ""
    return (
        f"layer {space.label(block, candidate)}{more}: its forward changes its attribute "
        f"{attribute} each time, which no checkpoint keeps and no other stage is told; if the "
        f"result depends on it, register_buffer({attribute.rpartition('.')[2]!r}, "
        f"torch.tensor(...)) keeps it"
    )


def evaluating_note(space: Space, layers: SketchedLayers) -> str | None:
    """A line about the first layer that its factory makes with parts in evaluation mode.

    To be asked for before the layers are called: then they are in training mode.
    """
    for block, each in enumerate(space.blocks):
        for candidate in range(len(each.candidates)):
            module = layers.module(block, candidate)
            parts = module.named_modules() if module is not None else ()
            for name, part in parts:
                if not part.training and next(part.children(), None) is None:
                    what = f"its {type(part).__name__}" + f" ({name})" * bool(name)
                    return (
                        f"layer {space.label(block, candidate)}: its factory leaves {what} in "
                        f"evaluation mode, and a run puts it in training mode, as model.train() "
                        f"does; a class whose train() does nothing stays as it is"
                    )
    return None
