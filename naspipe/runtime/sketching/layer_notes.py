"""Lines about layers that a run does not keep as they are made."""

from __future__ import annotations

from naspipe.config.space import Space
from naspipe.runtime.sketching.sketched import SketchedLayers


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
