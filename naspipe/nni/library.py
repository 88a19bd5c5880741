"""The classes of NNI that the adapter knows, imported when a space is handed over."""

from __future__ import annotations

import logging
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn

from naspipe.config.errors import ConfigError

EXTRA = "pip install 'naspipe[nni]'"


@dataclass(frozen=True, slots=True)
class Library:
    """The classes of ``nni.nas.nn.pytorch``, by the role they play here; NNI has no types."""

    model_space: Any
    mutable_module: Any
    layer_choice: Any
    input_choice: Any
    repeat: Any
    cell: Any
    chosen_inputs: Any
    mutable: Any
    categorical: Any
    categorical_multiple: Any
    constraint: Any
    model_context: Any

    def under(self, sample: dict[str, Any]) -> AbstractContextManager[Any]:
        """In this context NNI's constructors make the modules of one architecture."""
        context: AbstractContextManager[Any] = self.model_context(sample)
        return context

    def own_mutables(self, module: nn.Module) -> list[Any]:
        """The mutables that a module itself registered, not those of its children."""
        return list(module.mutables) if isinstance(module, self.mutable_module) else []


@cache
def library() -> Library:
    """NNI's classes.

    Raises:
        ConfigError: naming the extra to install, where NNI is not.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of missing extras of its own
            import nni.mutable as mutable
            import nni.nas.nn.pytorch as pytorch
            from nni.mutable.annotation import Constraint
            from nni.nas.nn.pytorch.choice import ChosenInputs
            from nni.nas.space import model_context
    except ImportError as error:
        raise ConfigError(
            f"spaces of NNI need NNI 3.0 and Lightning, found {error}; {EXTRA}"
        ) from error
    logging.getLogger("nni").setLevel(logging.WARNING)
    return Library(
        model_space=pytorch.ModelSpace,
        mutable_module=pytorch.MutableModule,
        layer_choice=pytorch.LayerChoice,
        input_choice=pytorch.InputChoice,
        repeat=pytorch.Repeat,
        cell=pytorch.Cell,
        chosen_inputs=ChosenInputs,
        mutable=mutable.Mutable,
        categorical=mutable.Categorical,
        categorical_multiple=mutable.CategoricalMultiple,
        constraint=Constraint,
        model_context=model_context,
    )
