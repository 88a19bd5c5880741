"""Held-out batches that layers or the loss do not take: found before the start, not when judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from naspipe.config.ids import FIRST_STREAM
from naspipe.frontend.given.space_check import Look, looked
from naspipe.runtime.jobs.batches_apart import batch_apart
from naspipe.runtime.jobs.job import ValidationPlan


def check_held_out(validation: ValidationPlan | None, device: str) -> None:
    """The subnets that a run is judged by must take its first held-out batch.

    It is followed by its shapes, as the first batch of the training is. One of the same shapes
    and types, whatever its number of items, needs no look.

    Args:
        validation: of a stream; None where it is not judged.
        device: where layers compute in the run.

    Raises:
        ConfigError: naming the layer that does not take it.
    """
    if validation is None:
        return
    evaluation = validation.evaluation
    workload, seed = evaluation.workload, evaluation.workload.definition.seed
    batch = batch_apart(evaluation.held_out, seed, 0)
    if workload.tapped or _items(batch) == _items(batch_apart(workload.data, seed, 0)):
        return
    space = workload.space
    chains = [space.chain(choices) for choices in validation.choices]
    plain = replace(workload, is_trained=False, is_taught=False)
    look = Look(
        plain,
        batch,
        [space.subnet(FIRST_STREAM, number, chain) for number, chain in enumerate(chains)],
        has_plain_loss=not evaluation.probe and plain.judged_fields == plain.loss_fields,
        is_here=device == "cpu",
        only_subnets=True,
        whose="held-out data: ",
    )
    looked(look, lambda _: None)


def _items(batch: Mapping[str, Any]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """Of each field, the type and the shape of one item."""
    tensors = {name: each for name, each in batch.items() if torch.is_tensor(each)}
    return {name: (each.dtype, each.shape[1:]) for name, each in tensors.items()}
