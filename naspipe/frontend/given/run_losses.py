"""The loss that a run was trained with, found again from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.user_code import import_attribute, is_same_name
from naspipe.frontend.checks.made_of_checks import check_run_loss
from naspipe.runtime.jobs.loss_values import described
from naspipe.runtime.jobs.losses import Loss
from naspipe.runtime.jobs.workload import Workload
from naspipe.trace.results.run_directory import RunDirectory


def run_loss(workload: Workload, directory: RunDirectory, names: Sequence[str | None]) -> Loss:
    """The loss that a run was trained with.

    Args:
        workload: what the run trained, with the loss that a new run would have.
        directory: the run's.
        names: ``MODULE:ATTRIBUTE`` of data and space: their modules are looked through, in this
            order, before what the run recorded is imported. Other names say nothing.

    Raises:
        ConfigError: where it is not found.
    """
    manifest, modules = directory.read_manifest(), _modules(names)
    recorded, loss = str(manifest["definition"]["loss"]), workload.loss
    if described(loss) != recorded and not recorded.startswith("naspipe."):  # those want teachers
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
    """Those that are loaded, each once."""
    found = (sys.modules.get(name.partition(":")[0]) for name in names if name and ":" in name)
    return list(dict.fromkeys(each for each in found if each is not None))


def _found(
    recorded: str,
    loss: Loss,
    modules: Sequence[ModuleType],
    directory: RunDirectory,
    started: str,
) -> Loss:
    """The loss of this name; the one that is given where none has it.

    Raises:
        ConfigError: where a name of a notebook's stands for two.
    """
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
    """How a definition would call a loss, where the recorded name may mean it; or nothing."""
    if not callable(value) or isinstance(value, type):
        return ""
    with suppress(Exception):  # what cannot be described is no loss
        said = described(value)
        return said if is_same_name(said, recorded) else ""
    return ""


def _imported(recorded: str, started: str) -> Iterator[Loss]:
    """What a name of a function, or of a class without values, means.

    The script that started the run is left alone: it might start another one.
    """
    module, _, name = recorded.rpartition(".")
    if not module or "(" in recorded or module == started:
        return
    with suppress(ConfigError, TypeError):
        value = import_attribute(f"{module}:{name}")
        found: Loss = value() if isinstance(value, type) else value
        if _said_if(recorded, found):
            yield found
