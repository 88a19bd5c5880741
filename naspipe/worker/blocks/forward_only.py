"""Forwards without autograd, for streams that are not trained and for probes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.user_code import called
from naspipe.machine.determinism import seed_draws
from naspipe.machine.out_of_memory import raising_shortages
from naspipe.machine.staging import same_bits
from naspipe.worker.blocks.guards import left_as_it_is
from naspipe.worker.blocks.segment import as_tuple, autocast
from naspipe.worker.blocks.specs import SegmentSpec, Tensors, form_of, form_text
from naspipe.worker.layers.bound_layer import BoundLayer, refused
from naspipe.worker.layers.kept_state import KNOWN, Statistics, buffer_slots, collected


def forward_only(
    spec: SegmentSpec, layer: BoundLayer, inputs: Tensors, trains: bool = False
) -> tuple[Tensors, Statistics]:
    """Compute the block of a stream that is not trained, with random draws keyed as in training.

    With ``trains`` the module is in training mode, but its norms keep their statistics. Return the
    outputs, and the batch statistics of norms in training mode.
    """
    if layer.module.training != trains:
        layer.module.train(trains)
    before = _others(layer) if trains else {}
    statistics: Statistics = {}
    with ExitStack() as stack:
        if trains:
            statistics = stack.enter_context(collected(layer.module))
        outputs = _computed(spec, layer, inputs)
    for name, buffer in _others(layer).items() if before else ():
        if name not in before or not same_bits(buffer, before[name]):
            raise ConfigError(
                f"layer {spec.label} of the teacher: its forward writes the buffer {name}, which "
                f"only batch normalisation may; use mode eval, or a layer that keeps nothing"
            )
    return outputs, statistics


def probe(spec: SegmentSpec, layer: BoundLayer, inputs: Tensors) -> Tensors:
    """Compute the block of a probe as in training, but leave the layer's buffers unchanged.

    Return the outputs, or the loss if ``spec.finish`` computes one from them.
    """
    with lent_buffers(layer.module):
        return _computed(spec, layer, inputs)


def _computed(spec: SegmentSpec, layer: BoundLayer, inputs: Tensors) -> Tensors:
    given = (*inputs, *spec.fields)
    name = f"{spec.label} ({type(layer.module).__name__})"
    seed_draws(spec.seed)
    with raising_shortages(), torch.no_grad(), autocast(spec.precision, spec.device_type):
        with (
            left_as_it_is(f"block {name}", inputs, spec.fields, layer.is_first),
            called(lambda: f"in layer {spec.label}, called with {form_text(form_of(given))}"),
        ):
            outputs = as_tuple(layer.call(*given, **spec.setting), spec)
        if layer.edited:
            raise refused(f"layer {name}", layer.edited, "a forward without a backward")
        if spec.finish is None:
            return outputs
        with called(lambda: f"in the loss, called with {form_text(form_of(outputs))}"):
            return spec.finish(outputs)


@contextmanager
def lent_buffers(module: nn.Module) -> Iterator[None]:
    """Temporarily replace the module's buffers by copies; the originals are not touched.

    The graphs of other passes, which may hold the originals, therefore stay valid. On exit, buffers
    that were registered or dropped in the context are restored to their former state.
    """
    own = [(part, dict(part._buffers)) for part in module.modules()]
    lent: dict[int, torch.Tensor | None] = {id(None): None}
    try:
        for part, buffers in own:
            for name, buffer in buffers.items():
                if buffer is not None and id(buffer) not in lent:  # a buffer may occur twice
                    lent[id(buffer)] = buffer.clone()
                part._buffers[name] = lent[id(buffer)]
        yield
    finally:
        for part, buffers in own:
            part._buffers.clear()
            part._buffers.update(buffers)


def _others(layer: BoundLayer) -> dict[str, torch.Tensor]:
    """Return copies of the buffers that are not statistics of norms."""
    slots = [slot for slot in buffer_slots(layer.module) if type(slot[1]) not in KNOWN]
    return {name: owner.get_buffer(key).clone() for name, owner, key in slots}
