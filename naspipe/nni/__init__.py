"""Model spaces of NNI 3.0 as naspipe spaces; the only package that imports ``nni``."""

from importlib import import_module
from typing import Any

__all__ = ["NasExperiment"]


def __getattr__(name: str) -> Any:
    """The one name that a script of NNI's imports from here; what it needs comes with it."""
    if name == "NasExperiment":
        return getattr(import_module("naspipe.experiment.nas_experiment"), name)
    raise AttributeError(f"module naspipe.nni has no attribute {name!r}")
