"""A block of a stream that is not trained: a forward in evaluation mode, without autograd."""

from __future__ import annotations

import torch

from naspipe.runtime.blocks.segment import SegmentSpec, Tensors, as_tuple, autocast
from naspipe.runtime.devices.determinism import seed_draws
from naspipe.runtime.layers.bound_layer import BoundLayer


def forward_only(spec: SegmentSpec, layer: BoundLayer, inputs: Tensors) -> Tensors:
    """Compute the block; its draws are keyed as in training.

    Raises:
        ConfigError: when it returns something that is not tensors.
    """
    if layer.module.training:
        layer.module.eval()
    seed_draws(spec.seed)
    with torch.no_grad(), autocast(spec.precision, spec.device_type):
        return as_tuple(layer.call(*inputs, *spec.fields), spec)
