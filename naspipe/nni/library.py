"""The NNI classes that the adapter knows, and the labels that a model space leaves open.

The classes are imported when a space is passed to the adapter.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from naspipe.config.errors import ConfigError

# The classes of NNI


EXTRA = "pip install 'naspipe[nni]'"


@dataclass(frozen=True, slots=True)
class Library:
    """The classes of ``nni.nas.nn.pytorch`` by their role here; NNI has no type annotations."""

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
        """Return a context in which NNI's constructors create the modules of one architecture."""
        context: AbstractContextManager[Any] = self.model_context(sample)
        return context

    def own_mutables(self, module: nn.Module) -> list[Any]:
        """Return the mutables registered by a module itself, without those of its children."""
        return list(module.mutables) if isinstance(module, self.mutable_module) else []


@cache
def library() -> Library:
    """Import NNI's classes; a ConfigError names the extra to install if NNI is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about missing extras
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


# Labels, their values, and where each is used


Sample = dict[str, Any]
"""One architecture in NNI's form: the value of every label."""

MAX_VALUES = 4096
"""Maximum number of values of one label."""


def domains(space: Any) -> dict[str, tuple[Any, ...]]:
    """Return every label of a space with its values, in the order in which NNI lists them.

    Raises:
        ConfigError: for a label that is not a choice among finitely many values.
    """
    return {label: _values(label, mutable) for label, mutable in space.simplify().items()}


def _values(label: str, mutable: Any) -> tuple[Any, ...]:
    if isinstance(mutable, library().categorical):
        return tuple(mutable.values)
    if isinstance(mutable, library().categorical_multiple):
        sizes = [mutable.n_chosen] if mutable.n_chosen else range(1, len(mutable.values) + 1)
        if len(mutable.values) <= MAX_VALUES.bit_length():
            subsets = chain.from_iterable(combinations(mutable.values, size) for size in sizes)
            return tuple(list(subset) for subset in subsets)
        if mutable.n_chosen == 1:
            return tuple([value] for value in mutable.values)
    if isinstance(mutable, library().constraint):
        raise ConfigError(
            f"label {label}: expected labels that are drawn each on its own, found a constraint, "
            f"{type(mutable).__name__}; leave it out. A NasBench101Cell is made as a whole, with "
            f"widths that follow from all its edges: list cells as candidates of a LayerChoice, "
            f"each NasBench101Cell.create_fixed_module(sample, ...)"
        )
    raise ConfigError(
        f"label {label}: expected a choice between at most {MAX_VALUES} values, found "
        f"{mutable!r:.80}"
    )


def explored(mutable: Any) -> Any:
    """Return a label's mutable for strategies; a tuner gets every subset as one value."""
    if not isinstance(mutable, library().categorical_multiple):
        return mutable

    class Subsets(library().categorical_multiple):  # type: ignore[misc]
        def as_legacy_dict(self) -> dict[str, Any]:
            return {"_type": "choice", "_value": list(_values(self.label, self))}

    found = Subsets(mutable.values, n_chosen=mutable.n_chosen, label=mutable.label)
    found.weights = mutable.weights
    return found


def labels_of(mutable: Any) -> tuple[str, ...]:
    """Return the labels that an expression depends on."""
    return tuple(mutable.simplify()) if isinstance(mutable, library().mutable) else ()


def labels_in(module: nn.Module) -> tuple[str, ...]:
    """Return every label registered by a module or anything in it, sorted."""
    found = {
        label
        for part in module.modules()
        for mutable in library().own_mutables(part)
        for label in labels_of(mutable)
    }
    return tuple(sorted(found))


def is_open(module: nn.Module) -> bool:
    """Return True if a module or anything in it is constructed from label values."""
    if module not in _IS_OPEN:
        _IS_OPEN[module] = bool(labels_in(module))
    return _IS_OPEN[module]


def call_open(module: nn.Module) -> None:
    """Record that creating a module depends on another decision of the architecture."""
    _IS_OPEN[module] = True


_IS_OPEN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Cached, because it is queried at every call of a traced forward and slow to compute."""


def is_structure(module: nn.Module) -> bool:
    """Return True if a module's forward decides which other modules run."""
    known = library()
    if isinstance(module, known.repeat):
        return isinstance(module.depth_choice, known.mutable)
    return isinstance(module, (known.layer_choice, known.input_choice, known.cell))


def structure_in(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and module of every such decision in a module, including the module itself."""
    return ((name, part) for name, part in module.named_modules() if is_structure(part))
