"""``naspipe.train``: a space in ordinary torch code, to a trained run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naspipe.core.config import Execution, Recipe
from naspipe.core.space import Space
from naspipe.frontend.run import Run
from naspipe.frontend.training import Training, define
from naspipe.runtime.compute import Batches, Loss, Workload
from naspipe.runtime.reports import LaunchObserver, SilentObserver
from naspipe.trace.run_directory import RunDirectory


def train(
    space: Space,
    data: Batches,
    loss: Loss,
    *,
    steps: int,
    optimizer: str = "SGD",
    lr: float = 0.05,
    optimizer_options: Mapping[str, Any] | None = None,
    sampler: str = "uniform",
    seed: int = 0,
    stages: int = 1,
    run_dir: str | Path | None = None,
    recipe: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None,
    observer: LaunchObserver | None = None,
) -> Run:
    """Train a supernet; the bits are those of a plain one-at-a-time loop on any number of stages.

    Args:
        space: the blocks and their candidates.
        data: ``data(seed, sequence_id)`` returns named tensors, batch dimension first; a pure
            function, called in any stage.
        loss: called with the last block's output and the batch field ``target``.
        steps: subnets to train, one step each.
        optimizer: a ``torch.optim`` class by name; ``lr`` and ``optimizer_options`` go to it.
        sampler: ``uniform``, ``fair``, ``spaced:W`` or ``file:PATH``.
        seed: of the stream, the parameters and every random draw.
        stages: stage processes; 1 trains in this process.
        run_dir: a directory that does not exist yet; ``runs/NAME-TIME`` by default.
        recipe: further fields of :class:`naspipe.core.config.Recipe`.
        execution: further fields of :class:`naspipe.core.config.Execution`.
        observer: told of losses and stage use as the run goes.

    Raises:
        ConfigError: for input that cannot be used; nothing is written then.
        StageFailedError: when a layer, the data or the loss raises in any stage.
    """
    chosen = Recipe(
        optimizer=optimizer, lr=lr, optimizer_options=optimizer_options or {}, **(recipe or {})
    )
    definition = define(space, data, loss, recipe=chosen, seed=seed, steps=steps, sampler=sampler)
    how = Execution(stages=stages, **(execution or {}))
    path = Path(run_dir) if run_dir is not None else default_run_directory(space.name)
    Training(
        workload=Workload(
            space=space, data=data, loss=loss, definition=definition, recompute=how.recompute
        ),
        execution=how,
        directory=RunDirectory(path),
        observer=observer or SilentObserver(),
    ).run()
    return Run(space, path)


def default_run_directory(name: str) -> Path:
    """``runs/NAME-TIME`` below the working directory."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
