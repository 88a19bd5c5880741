"""Model spaces of NNI 3.0 as naspipe spaces; the only package that imports ``nni``."""

from importlib import import_module
from typing import Any

__all__ = ["NasExperiment"]


def __getattr__(name: str) -> Any:
    """Import ``NasExperiment``, the only name that NNI scripts import from here, on first use."""
    if name == "NasExperiment":
        return getattr(import_module("naspipe.experiment.nas_experiment"), name)
    raise AttributeError(f"module naspipe.nni has no attribute {name!r}")
