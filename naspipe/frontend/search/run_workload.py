"""What a run trained, with the data and the loss that somebody gives for it."""

from __future__ import annotations

from naspipe.config.definition import Definition, Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.user_code import is_same_name
from naspipe.frontend.given.run import Run
from naspipe.runtime.jobs.losses import Loss
from naspipe.runtime.jobs.workload import Batches, Workload, define


def run_workload(run: Run, data: Batches, loss: Loss) -> Workload:
    """A run's workload, as far as its layers' costs and weights depend on it.

    Raises:
        ConfigError: when the data are not the run's.
    """
    recorded = run.manifest["definition"]
    fields = {**recorded, "recipe": Recipe(**recorded["recipe"])}
    workload = Workload(space=run.space, data=data, loss=loss, definition=Definition(**fields))
    found = define(run.space, data, loss, recipe=Recipe(), steps=1).data
    expected = recorded["data"]
    for key in sorted(found.keys() | expected.keys()):
        if not is_same_name(found.get(key), expected.get(key)):
            raise ConfigError(
                f"run {run.path} was trained on {expected.get('name')} data of "
                f"{key} {expected.get(key)!r:.80}, found {found.get(key)!r:.80}: expected the "
                f"run's own data; give them with --data, or leave it out"
            )
    return workload
