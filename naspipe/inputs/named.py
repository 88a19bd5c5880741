"""Find spaces, data, losses, students and runs by their names on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

import search_spaces
from naspipe.checks.data import check_batch, check_is_data
from naspipe.checks.fingerprint import check_run_loss
from naspipe.checks.inputs import check_layers
from naspipe.checks.loss import check_is_loss, given_fields, given_metrics
from naspipe.checks.optimizer import check_optimizer
from naspipe.config.definition import Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Rule, parse_rule
from naspipe.config.space import Space
from naspipe.config.user_code import import_attribute, is_same_name, users_code
from naspipe.data.registry import find_entry, has_known_prefix, names_of_kind, open_data
from naspipe.inputs.ends import END, joined_end, with_loss_layer
from naspipe.inputs.run import Run, check_space, loss_layer_of
from naspipe.jobs.losses import Loss, described
from naspipe.jobs.workload import Batches, Workload
from naspipe.store.labels import SpaceLabels
from naspipe.store.run_directory import RunDirectory


def find_workload(
    name: str,
    scale: str,
    data_name: str | None,
    data_root: Path | None,
    sizes: Mapping[str, int] | None = None,
) -> Workload:
    """Return one of naspipe's spaces by name, or a user's own as ``module:attribute``.

    A user's :class:`Space` has no scale; its data are ``module:function`` or a data set by name;
    its loss is the ``loss`` of the space's module, or otherwise of the data's. ``sizes`` are the
    ``max_tokens`` or the ``batch_size`` of a data set's batches, if different from the space's. The
    workload is defined for one step with the recipe that goes with the space: see
    :meth:`Workload.redefined`.
    """
    if ":" in name:
        return _own_workload(name, data_name, data_root, sizes or {})
    defaults = search_spaces.defaults(name, scale)
    data_name = data_name or defaults.data
    if not is_own_data(data_name):
        kind, found = find_entry(defaults.data).kind, find_entry(data_name).kind
        if found != kind:
            raise ConfigError(
                f"space {name} needs {kind} data, found the {found} data set {data_name!r}: "
                f"expected --data {' or '.join(names_of_kind(kind))}"
            )
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
    """Return a workload with the space that a run trained, according to the run's manifest.

    A joined loss adds a block after the last one, and so does a loss with parameters or buffers; a
    teacher may lack the student's last blocks, and has its own rules.
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
    """Return a workload to measure, checked as far as costs depend on it, and the execution."""
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
    """Import a user's own space by ``module:attribute``."""
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
    name: str, data_name: str | None, data_root: Path | None, sizes: Mapping[str, int]
) -> Workload:
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
    """Return a data set's split by name, or a user's ``module:function`` with one split."""
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
    """Return True if the name is a user's ``module:function``, not the name of a data set."""
    return ":" in data_name and not has_known_prefix(data_name)


def run_loss(workload: Workload, directory: RunDirectory, names: Sequence[str | None]) -> Loss:
    """Return the loss that a run was trained with.

    Args:
        workload: the workload of the run, with the loss that a new run would have.
        directory: the run's.
        names: ``MODULE:ATTRIBUTE`` of data and space: their modules are searched, in this order,
            before the recorded name is imported. Other names are ignored.
    """
    manifest, modules = directory.read_manifest(), _modules(names)
    recorded, loss = str(manifest["definition"]["loss"]), workload.loss
    if described(loss) != recorded and not recorded.startswith("naspipe."):  # those need teachers
        command = manifest.get("provenance", {}).get("command") or [""]
        started = Path(command[0]).stem
        loss = _found(recorded, loss, modules, directory, started)
    try:
        check_run_loss(directory, workload.space, loss)
    except ConfigError as error:
        places = " or ".join(each.__name__ for each in modules)
        raise ConfigError(f"{error}{f', as loss in {places}' if places else ''}") from None
    return loss


def _modules(names: Sequence[str | None]) -> list[ModuleType]:
    """Return the modules that are loaded, without duplicates."""
    found = (sys.modules.get(name.partition(":")[0]) for name in names if name and ":" in name)
    return list(dict.fromkeys(each for each in found if each is not None))


def _found(
    recorded: str, loss: Loss, modules: Sequence[ModuleType], directory: RunDirectory, started: str
) -> Loss:
    """Return the loss of this name, or ``loss`` if none is found."""
    held = [value for module in modules for value in vars(module).values()]
    fitting: dict[str, Loss] = {
        said: value for value in [*held, loss] if (said := _said_if(recorded, value))
    }
    if recorded in fitting:
        return fitting[recorded]
    if len(fitting) > 1:
        raise ConfigError(
            f"run {directory.path}: expected one loss called {recorded}, found "
            f"{' and '.join(sorted(fitting))}; rename the one that it was not trained with"
        )
    return next(iter([*fitting.values(), *_imported(recorded, started)]), loss)


def _said_if(recorded: str, value: Any) -> str:
    """Return the description of a loss if the recorded name may mean it; otherwise empty."""
    if not callable(value) or isinstance(value, type):
        return ""
    with suppress(Exception):  # an object without a description is not a loss
        said = described(value)
        return said if is_same_name(said, recorded) else ""
    return ""


def _imported(recorded: str, started: str) -> Iterator[Loss]:
    """Yield the function, or instance of a class without values, that a recorded name means.

    The script that started the run is not imported, because that might start another run.
    """
    module, _, name = recorded.rpartition(".")
    if not module or "(" in recorded or module == started:
        return
    with suppress(ConfigError, TypeError):
        value = import_attribute(f"{module}:{name}")
        found: Loss = value() if isinstance(value, type) else value
        if _said_if(recorded, found):
            yield found


@dataclass(frozen=True, slots=True)
class Students:
    """A student for each block of a teacher, and their losses, if known."""

    blocks: Sequence[Space | nn.Module]
    loss: Any = None
    """The loss of every block except the last."""
    last_loss: Any = None

    def with_rules(self, rules: Mapping[str, Rule]) -> Students:
        """Return the students with other rules for shared layers, by name."""
        known = [each.shared_rules if isinstance(each, Space) else {} for each in self.blocks]
        names = sorted({name for each in known for name in each})
        for name in rules:
            if name not in names:
                raise ConfigError(
                    f"rule.{name}: expected a shared layer of a student block, "
                    f"{', '.join(names) or 'of which there are none'}, found none called so"
                )
        blocks = [
            each.with_rules({name: rules[name] for name in own.keys() & rules.keys()})
            if isinstance(each, Space)
            else each
            for each, own in zip(self.blocks, known, strict=True)
        ]
        return replace(self, blocks=blocks)


def find_students(name: str, teacher: str | None, scale: str, info: Mapping[str, int]) -> Students:
    """Return the students with a name.

    ``module:attribute`` is a user's own list of spaces or modules, one for each block of the
    teacher, or a function without arguments that returns one. Its module may have a ``loss`` and a
    ``last_loss``.

    Args:
        name: of one of naspipe's students, or as above.
        teacher: the name of the teacher's network, if it is one of naspipe's.
        scale: of both.
        info: the properties that the data state.
    """
    if ":" in name:
        return _own_students(name)
    kind = search_spaces.student_kind(name)
    if teacher is None:
        raise ConfigError(
            f"student {name}: expected a teacher of {', '.join(kind.teachers)}, found a network "
            f"without a name; give --network, if it is one of them"
        )
    blocks = search_spaces.students_of(teacher, name, scale, info)
    return Students(blocks, *(make() if make else None for make in (kind.loss, kind.last_loss)))


def _own_students(name: str) -> Students:
    found = import_attribute(name)
    if callable(found) and not isinstance(found, nn.Module):
        with users_code(f"{name}: expected a list of students, one per teacher block, found"):
            found = found()
    is_list = isinstance(found, Sequence | nn.ModuleList) and not isinstance(found, str)
    blocks = list(found) if is_list else [found]
    for each in blocks:
        if not is_list or not isinstance(each, Space | nn.Module):
            raise ConfigError(
                f"{name}: expected a list of spaces or modules, one per teacher block, found "
                f"{'a list with ' if is_list else ''}{type(each).__name__}"
            )
    module = sys.modules[name.partition(":")[0]]
    return Students(blocks, *(getattr(module, each, None) for each in ("loss", "last_loss")))


_DEFINED = ("space", "scale", "steps", "rules", "recipe", "data")


def open_run(path: str | Path, space: Space | None = None) -> Run:
    """Open a run by its directory, whether it ended, failed, was interrupted or is still active.

    Losses, metrics, validations and the manifest need nothing else. The space, and with it
    :meth:`naspipe.Run.layer`, is found by its name at first use, as when a run is resumed from the
    command line; a space of your own that was trained from Python must be passed.

    Args:
        path: the run directory.
        space: the space of the run.

    Raises:
        ConfigError: if the path is not a run directory, or the run trained another space.
    """
    place = Path(path)
    inside = sorted(each.parent for each in place.glob("*/manifest.json"))
    if inside and not (place / "manifest.json").exists():  # streams or blocks of one training
        raise ConfigError(
            f"{place}: expected one run, found a folder of several; open one of them, as in "
            f"naspipe.open_run({str(inside[0])!r})"
        )
    manifest = RunDirectory(place).read_manifest()
    definition = manifest.get("definition")
    is_defined = (
        isinstance(manifest.get("status"), str)
        and isinstance(definition, dict)
        and isinstance(manifest.get("space"), dict)
        and all(name in definition for name in _DEFINED)
    )
    if not is_defined:
        raise ConfigError(
            f"{place}: expected the manifest of a run, found one without a definition"
        )
    SpaceLabels(manifest["space"])
    run = Run(space or partial(_find_space, place, manifest), place)
    if space is not None:
        check_space(run)
    return run


def _find_space(place: Path, manifest: dict[str, Any]) -> Space:
    definition, source = manifest["definition"], manifest.get("source") or {}
    name = str(source.get("space") or definition["space"])
    if ":" not in name and name not in (*search_spaces.names(), *search_spaces.networks()):
        raise ConfigError(
            f"{place} trained {name}, a space of your own: expected it as in "
            f"naspipe.open_run({str(place)!r}, space)"
        )
    data = source.get("data") or definition["data"].get("name")
    scale = str(source.get("scale") or definition["scale"] or "tiny")
    named = find_workload(name, scale, data, None, source.get("sizes"))
    run = Run(as_trained(named, manifest).space, place)
    check_space(run)
    return run.space
