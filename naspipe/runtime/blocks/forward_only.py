"""A block of a stream that is not trained: a forward without autograd."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from naspipe.core.errors import ConfigError
from naspipe.core.user_code import called
from naspipe.runtime.blocks.edits import left_as_it_is
from naspipe.runtime.blocks.forms import form_of, form_text
from naspipe.runtime.blocks.segment import SegmentSpec, Tensors, as_tuple, autocast
from naspipe.runtime.devices.determinism import seed_draws
from naspipe.runtime.devices.tensor_bytes import same_bits
from naspipe.runtime.layers.bound_layer import BoundLayer
from naspipe.runtime.layers.norm_statistics import KNOWN, Statistics, collected
from naspipe.runtime.memory.shortages import raising_shortages


def forward_only(
    spec: SegmentSpec, layer: BoundLayer, inputs: Tensors, trains: bool = False
) -> tuple[Tensors, Statistics]:
    """Compute the block; its draws are keyed as in training.

    Args:
        spec: what is fixed about the block.
        layer: at the version that this pass reads.
        inputs: of the block.
        trains: compute as in training; the module's norms keep the statistics that they have.

    Returns:
        The outputs, and of norms in training mode what they saw.

    Raises:
        ConfigError: when it returns something that is not tensors, or writes a buffer.
    """
    if layer.module.training != trains:
        layer.module.train(trains)
    before = _others(layer) if trains else {}
    statistics: Statistics = {}
    seed_draws(spec.seed)
    with ExitStack() as stack:
        stack.enter_context(raising_shortages())
        stack.enter_context(torch.no_grad())
        stack.enter_context(autocast(spec.precision, spec.device_type))
        if trains:
            statistics = stack.enter_context(collected(layer.module))
        given = (*inputs, *spec.fields)
        name = f"block {spec.label} ({type(layer.module).__name__})"
        stack.enter_context(left_as_it_is(name, inputs, spec.fields, layer.is_first))
        stack.enter_context(
            called(lambda: f"in layer {spec.label}, called with {form_text(form_of(given))}")
        )
        outputs = as_tuple(layer.call(*given, **spec.setting), spec)
    for name, buffer in _others(layer).items() if before else ():
        if not same_bits(buffer, before[name]):
            raise ConfigError(
                f"layer {spec.label} of the teacher: its forward writes the buffer {name}, which "
                f"only batch normalisation may; use mode eval, or a layer that keeps nothing"
            )
    return outputs, statistics


def _others(layer: BoundLayer) -> dict[str, torch.Tensor]:
    """Copies of the buffers that are no statistics of norms."""
    return {
        f"{prefix}.{name}": buffer.clone()
        for prefix, part in layer.module.named_modules()
        if type(part) not in KNOWN
        for name, buffer in part._buffers.items()
        if buffer is not None
    }
