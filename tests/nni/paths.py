"""Counterparts by path, as naspipe found them once: wrong wherever a constructor filters."""

from __future__ import annotations

from naspipe.nni.counterparts import Counterparts, running
from naspipe.nni.library import library


def by_path(traced, sample, model):
    """What stands where the space's paths lead in NNI's model."""
    found = Counterparts({}, {})
    for node in traced.graph.nodes:
        if node.op == "call_module":
            path, _ = running(traced.space, node, sample)
            try:
                found.modules[path] = {"": _at(traced.space, model, path)}
            except AttributeError:
                continue  # a repetition that this architecture does not have
    return found


def _at(space, model, path):
    known = library()
    at = space
    for part in path.split("."):
        is_choice = isinstance(at, known.layer_choice)
        is_repeats_list = isinstance(at, known.repeat) and part == "blocks"
        at = at.get_submodule(part)
        if not is_choice and not is_repeats_list:
            model = model.get_submodule(part)
    return model
