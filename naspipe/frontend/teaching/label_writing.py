"""A frozen teacher's labels, written once, for many runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from naspipe.config.definition import Recipe
from naspipe.config.errors import ConfigError
from naspipe.frontend.teaching.teachers import Teacher
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.jobs.workload import Batches, Workload
from naspipe.runtime.labels.label_file import LabelWriter, label_key
from naspipe.runtime.labels.label_network import LabelNetwork, check_draws


def write_labels(
    teacher: Teacher,
    data: Batches,
    path: str | Path,
    *,
    batches: int,
    seed: int = 0,
    recipe: Recipe | None = None,
    device: str = "cpu",
    on_label: Callable[[int], None] | None = None,
) -> None:
    """What a teacher says of the first batches, for runs with ``labels=file:PATH``.

    The bits are those of a teacher that is a stream of such a run.

    Args:
        teacher: in mode ``eval``.
        data: the student's.
        path: a file that does not exist yet.
        batches: how many; a run needs one per pass.
        seed: of the runs.
        recipe: of the runs: precision and threads.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        on_label: told of each number when its label is written.

    Raises:
        ConfigError: for a teacher whose labels are no function of the batch: one in mode
            ``train``, or one that draws; or for a file that exists.
        StorageError: when the file cannot be written.
    """
    if teacher.mode != "eval":
        raise ConfigError(f"labels: expected a teacher in mode eval, found {teacher.mode}")
    if batches < 1:
        raise ConfigError(f"labels: expected those of 1 batch or more, found {batches}")
    workload = label_workload(teacher, data, seed, recipe or Recipe())
    with (
        deterministic_torch(workload.recipe.threads),
        LabelWriter(Path(path), label_key(workload.definition)) as file,
    ):
        network = LabelNetwork.of(workload, device)
        for number in range(batches):
            file.write(number, check_draws(network, number, network.fields(number)))
            if on_label is not None:
                on_label(number)


def label_workload(teacher: Teacher, data: Batches, seed: int, recipe: Recipe) -> Workload:
    """A teacher's network with a student's data, to compute labels by.

    Its definition names the teacher as the student's does.
    """
    made = Workload.of(
        teacher.space, data, torch.nn.CrossEntropyLoss(), recipe=recipe, seed=seed, steps=1
    )
    definition = replace(made.definition, teacher=teacher.digest)
    return replace(made, definition=definition, is_trained=False)
