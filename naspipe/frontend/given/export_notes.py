"""What is said before the start of classes whose source no export could copy."""

from __future__ import annotations

from naspipe.core.space import Space
from naspipe.core.user_code import why_no_source
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.sketching.sketched import SketchedLayers


def export_note(space: Space, layers: SketchedLayers) -> str:
    """A line that names the first such class; nothing where there is none."""
    for block in sorted(set(first_of_kind(space))):
        for candidate in range(len(space.blocks[block].candidates)):
            module = layers.module(block, candidate)
            for inner in () if module is None else module.modules():
                kind = getattr(type(inner), "_bound_type", None) or type(inner)  # NNI's form of it
                if why := why_no_source(kind):
                    return (
                        f"to export layer {space.label(block, candidate)}, its class "
                        f"{kind.__name__} will be needed at the top of a module file: it {why}; "
                        f"it may move there after the run"
                    )
    return ""
