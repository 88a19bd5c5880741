"""Which layers' forwards follow one another within a step, because they leave buffers behind.

A log does not say so; the names of the tensors in a checkpoint do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naspipe.core.errors import ConfigError, LogError
from naspipe.core.ids import LayerId
from naspipe.core.rules import Exact
from naspipe.core.steps import recorded_steps
from naspipe.trace.access.labels import SpaceLabels
from naspipe.trace.results.run_directory import RunDirectory
from naspipe.trace.snapshots.checkpoints import cut_name
from naspipe.trace.snapshots.snapshot import tensor_names


def ordered_layers(
    directory: RunDirectory, labels: SpaceLabels, recipe: Mapping[str, Any]
) -> frozenset[LayerId]:
    """Of the last checkpoint that can be read; empty where there is none.

    Args:
        directory: of the run.
        labels: of its space.
        recipe: as its manifest holds it; where a step has one pass or statistics are deferred,
            there is no order within it.
    """
    if recorded_steps(recipe).passes == 1 or recipe.get("norms", "ordered") != "ordered":
        return frozenset()
    for name in ("final", *map(cut_name, directory.checkpoints.cuts)):
        try:
            found = (text.split("/") for text in tensor_names(directory.checkpoint(name)))
            layers = {labels.layer(f"{each[0]}:{each[1]}") for each in found if each[2] == "buffer"}
        except (ConfigError, LogError, IndexError):
            continue  # the next one may be whole
        return frozenset(layer for layer in layers if isinstance(labels.rule(layer), Exact))
    return frozenset()
