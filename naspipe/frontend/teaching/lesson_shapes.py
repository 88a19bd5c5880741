"""Whether a student's and its teacher's outputs can be compared: known before a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from naspipe.core.errors import ConfigError
from naspipe.core.space import Space
from naspipe.frontend.given.joined_end import END
from naspipe.frontend.teaching.taught import Taught
from naspipe.losses.top_classes import KeepsTop, top_classes
from naspipe.runtime.jobs.workload import Workload, field_of
from naspipe.runtime.measuring.layer_sizes import sketch

Shapes = list[tuple[int, ...]]


def check_lessons(taught: Taught) -> None:
    """The outputs of both networks must have the same shapes, for a loss that says so.

    Shapes are worked out without memory for tensors, of the first candidates; where a layer cannot
    be computed so, nothing is said. A norm in training mode must see two samples or more.

    Raises:
        ConfigError: for outputs of different shapes, or batches of one sample under such a norm.
    """
    student, *teachers = taught.workloads
    for teacher in teachers:
        if teacher.is_trained:
            continue
        _check_batch_norm(teacher)
        usual = type(student.loss) is torch.nn.CrossEntropyLoss
        if not getattr(student.loss, "same_shapes", usual):
            continue
        own, lesson = _shapes(student), _shapes(teacher)
        if own is not None and lesson is not None and own != lesson:
            raise ConfigError(
                f"teacher: expected outputs as the student has them, of shape "
                f"{' and '.join(map(str, own))}, found {' and '.join(map(str, lesson))}"
            )


def _check_batch_norm(teacher: Workload) -> None:
    batch = teacher.data(teacher.definition.seed, 0)
    if not teacher.runs_in_training_mode or len(field_of(batch, "input", 0)) > 1:
        return
    space = teacher.space
    for position, block in enumerate(space.blocks):
        for candidate in range(len(block.candidates)):
            modules = sketch(space, position, candidate).modules()
            if any(isinstance(each, _BatchNorm) for each in modules):
                raise ConfigError(
                    f"momentum: expected micro-batches of two samples or more, as layer "
                    f"{space.label(position, candidate)} normalises over them, found one"
                )


def _shapes(workload: Workload) -> Shapes | None:
    batch = workload.data(workload.definition.seed, 0)
    try:
        return _forward(workload.space, batch)
    except ConfigError:
        raise
    except Exception:  # whatever is wrong is said when real layers compute
        return None


def _forward(space: Space, batch: Mapping[str, Any]) -> Shapes:
    state: tuple[torch.Tensor, ...] = ()
    with torch.no_grad(), torch.device("meta"):
        for position in range(len(space)):
            if space.labels[position] == END:
                break
            module: Any = sketch(space, position, 0).eval().to("meta")
            fields = [field_of(batch, name, 0).to("meta") for name in space.fields(position)]
            if isinstance(module, KeepsTop):
                found = module.block(*state, *fields)
                top_classes(found, module.top)
                return [tuple(found.shape)]
            result = module(*state, *fields)
            state = result if isinstance(result, tuple) else (result,)
    return [tuple(each.shape) for each in state]
