"""Names on the command line to spaces, data, losses and recipes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import search_spaces
from naspipe.config.definition import Execution, Recipe, Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.rules import parse_rule
from naspipe.config.space import Space
from naspipe.config.user_code import import_attribute
from naspipe.data.registry import find_entry, has_known_prefix, names_of_kind, open_data
from naspipe.frontend.checks.data_checks import check_batch, check_is_data
from naspipe.frontend.checks.input_checks import check_layers
from naspipe.frontend.checks.loss_checks import check_is_loss, given_fields, given_metrics
from naspipe.frontend.checks.optimizer_checks import check_optimizer
from naspipe.frontend.given.joined_end import END, joined_end
from naspipe.frontend.given.loss_layer import with_loss_layer
from naspipe.frontend.given.run import loss_layer_of
from naspipe.runtime.jobs.workload import Batches, Workload


def find_workload(
    name: str,
    scale: str,
    data_name: str | None,
    data_root: Path | None,
    sizes: Mapping[str, int] | None = None,
) -> Workload:
    """A space of naspipe's by name, or a user's own as ``module:attribute``.

    A user's ``module:space`` is a :class:`Space`, which has no scale. Its data is ``--data
    module:function`` (or a data set by name), its loss the ``loss`` of the space's module, or
    else of the data's.
    ``sizes`` are the ``max_tokens`` or the ``batch_size`` of a data set's batches, where they are
    not the space's; a user's own function makes batches of its own sizes. It is defined for one
    step with the recipe that goes with the space: see :meth:`Workload.redefined`.

    Raises:
        ConfigError: for a name that cannot be found or is not what it should be.
    """
    if ":" in name:
        return _own_workload(name, data_name, data_root, sizes or {})
    defaults = search_spaces.defaults(name, scale)
    data_name = data_name or defaults.data
    if not is_own_data(data_name):
        _check_kind(name, data_name, find_entry(defaults.data).kind)
    usual = {"max_tokens": defaults.max_tokens, "batch_size": defaults.batch_size}
    data = find_data(data_name, data_root, {**usual, **(sizes or {})})
    space = search_spaces.build(name, scale, getattr(data, "info", {}))
    recipe = Recipe(
        optimizer=defaults.optimizer,
        lr=defaults.lr,
        optimizer_options=dict(defaults.optimizer_options),
        schedule=defaults.schedule,
        **defaults.further,
    )
    return Workload.of(space, data, defaults.loss(), recipe=recipe, scale=scale, steps=1)


def as_trained(workload: Workload, manifest: Mapping[str, Any]) -> Workload:
    """A workload with the space that a run of it trained, by the run's manifest.

    A joined loss adds a block behind the last one, and so does a loss with parameters or buffers; a
    teacher may lack the student's last blocks, and has rules of its own.
    """
    if loss_layer_of(manifest) is not None:
        workload = with_loss_layer(workload)
    space, labels = workload.space, list(manifest["space"]["labels"])
    blocks = list(space.blocks)
    if labels == [*space.labels, END]:
        blocks.append(joined_end())
    elif labels == list(space.labels[: len(labels)]):
        blocks = blocks[: len(labels)]
    found = Space(space.name, blocks, space.decisions, space.proof)
    rules = {name: parse_rule(text) for name, text in manifest["definition"]["rules"].items()}
    return replace(workload, space=found.with_rules(rules))


def find_measurable(
    name: str,
    scale: str,
    data_name: str | None,
    data_root: Path | None,
    execution: Execution,
    assignments: Sequence[str],
) -> tuple[Workload, Execution]:
    """What would be trained, checked as far as costs depend on it, and how.

    Raises:
        ConfigError: for names, settings, data or layers that cannot be used.
    """
    workload = find_workload(name, scale, data_name, data_root)
    settings = apply_settings(Settings(recipe=workload.recipe, execution=execution), assignments)
    workload = replace(
        with_loss_layer(workload.redefined(settings.rules, recipe=settings.recipe)),
        recompute=settings.execution.pipeline.recompute,
    )
    check_optimizer(workload.recipe)
    check_batch(workload)
    check_layers(workload)
    return workload, settings.execution


def find_space(name: str) -> Space:
    """A user's own space by ``module:attribute``.

    Raises:
        ConfigError: for a name that cannot be found or is no space.
    """
    space = import_attribute(name)
    if not isinstance(space, Space):
        module, _, attribute = name.partition(":")
        todo = ""
        if callable(space) and not hasattr(space, "named_parameters"):
            own = "space" if attribute != "space" else "my_space"
            todo = f"; call it in the module, {own} = {attribute}(...), and name {module}:{own}"
        raise ConfigError(f"{name}: expected a naspipe.Space, found {type(space).__name__}{todo}")
    return space


def _own_workload(
    name: str,
    data_name: str | None,
    data_root: Path | None,
    sizes: Mapping[str, int],
) -> Workload:
    from torch import nn

    space = find_space(name)
    if data_name is None:
        raise ConfigError(
            f"{name}: a space of your own needs --data module:function or --data NAME "
            f"(see `naspipe data list`)"
        )
    data = find_data(data_name, data_root, sizes)
    names = [name, *([data_name] if is_own_data(data_name) else [])]
    modules = [sys.modules[each.partition(":")[0]] for each in names]
    module = next((each for each in modules if getattr(each, "loss", None)), modules[0])
    loss = getattr(module, "loss", None) or nn.CrossEntropyLoss()
    check_is_loss(loss, f"{name}: its module's loss")
    if not callable(loss):
        raise ConfigError(
            f"{name}: expected the module's loss to be a function of (output, target), "
            f"found {type(loss).__name__}"
        )
    metrics = given_metrics(getattr(modules[0], "metrics", None))
    beside = {
        "loss_fields": given_fields(loss, getattr(module, "loss_fields", None)),
        "metrics": tuple(sorted(metrics)),
    }
    defined = Workload.of(space, data, loss, recipe=Recipe(), steps=1, **beside)
    return replace(defined, metrics=metrics)


def find_data(
    name: str, root: Path | None, sizes: Mapping[str, int | None], split: str = "train"
) -> Batches:
    """A data set's split by name, or a user's own as ``module:function``, which has one split.

    Raises:
        ConfigError: for a name that cannot be found or is no data.
    """
    if is_own_data(name):
        function: Callable[..., Any] = import_attribute(name)
        check_is_data(function, name)
        return function
    return open_data(
        name,
        root=root,
        max_tokens=sizes.get("max_tokens"),
        batch_size=sizes.get("batch_size"),
        batches=sizes.get("batches"),
        split=split,
    )


def is_own_data(data_name: str) -> bool:
    """Whether the name is a ``module:function`` of the user's, and not a data set's."""
    return ":" in data_name and not has_known_prefix(data_name)


def _check_kind(space: str, data_name: str, kind: str) -> None:
    found = find_entry(data_name).kind
    if found != kind:
        raise ConfigError(
            f"space {space} needs {kind} data, found the {found} data set {data_name!r}: "
            f"expected --data {' or '.join(names_of_kind(kind))}"
        )
