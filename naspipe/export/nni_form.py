"""``naspipe.to_nni``: a subnet as NNI's own model of its architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from naspipe.api.observers import Told
from naspipe.config.errors import InvariantError
from naspipe.export.assembly import assemble, with_own_statistics
from naspipe.export.exporter import first_batch
from naspipe.export.pytorch_form import same_outputs
from naspipe.inputs.run import Run, check_space
from naspipe.jobs.workload import Batches
from naspipe.machine.determinism import deterministic_torch
from naspipe.nni.adapter import instance, proof_of
from naspipe.wire.reports import NotesToStderr


def to_nni(
    run: Run,
    subnet: Sequence[int] | Mapping[str, Any],
    *,
    data: Batches | None = None,
    calibrate: int | None = None,
    ema: bool = False,
) -> nn.Module:
    """Return ``model_space.freeze(sample)`` with a run's weights, in evaluation mode.

    It is bitwise equal to the model that :func:`naspipe.export_subnet` writes for the same
    arguments.

    Args:
        run: a finished run of a space of :func:`naspipe.from_nni`.
        subnet: its choices, as in ``search.ranked()[0].choices``, or NNI's sample: the value of
            every label.
        data: the run's data; its first batch checks the model.
        calibrate: number of batches of ``data`` from which to recompute running statistics, as a
            search does before it scores a subnet (``search.calibration``); 0 (the default, with a
            note) keeps the mixture over all subnets that the run left.
        ema: use the moving averages of the weights.

    Raises:
        ConfigError: if the run's space is not NNI's, or if the subnet does not belong to it.
    """
    check_space(run)
    decisions = proof_of(run.space).decisions
    if isinstance(subnet, Mapping):
        choices, sample = decisions.choices_of(subnet), dict(subnet)
    else:
        run.space.chain(subnet)
        choices, sample = tuple(subnet), decisions.sample_of(subnet)
    chain = assemble(run, choices, ema=ema)
    if untrained := [layer.label for layer in chain.layers if not layer.is_trained]:
        Told(NotesToStderr()).on_note(
            f"never trained by {run.path}, with the weights that the model space begins with: "
            f"{', '.join(untrained)}"
        )
    with_own_statistics(chain, run, data, calibrate)
    model = instance(run.space, sample, [layer.module for layer in chain.layers]).eval()
    if data is not None:
        definition = run.manifest["definition"]
        batch = first_batch(data, definition["seed"], chain.inputs)
        with deterministic_torch(definition["recipe"]["threads"]):
            if not same_outputs(chain, model, batch):
                raise InvariantError(f"{sample}: NNI's model computes other bits than the run's")
    return model
