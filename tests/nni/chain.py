"""A subnet's layers one after the other, and NNI's fixed model with the same weights."""

from __future__ import annotations

import random

import torch
from nni.nas.nn.pytorch import LayerChoice, Repeat
from nni.nas.space import model_context


def samples(space, count, seed=3):
    """Architectures: every label drawn on its own."""
    draw = random.Random(seed)
    return [
        {label: draw.choice(options) for label, options in space.decisions.values.items()}
        for _ in range(count)
    ]


def layers(space, sample):
    """The modules of an architecture, made as a run makes them."""
    chain = space.chain(space.decisions.choices_of(sample))
    made = []
    for block, candidate in zip(space.blocks, chain, strict=True):
        torch.manual_seed(len(made))
        made.append(block.candidates[candidate]())
    return made


def forward(modules, x):
    state = (x,)
    for module in modules:
        out = module(*state)
        state = out if isinstance(out, tuple) else (out,)
    return out


def fixed_model(model_space, sample, modules):
    """NNI's model of an architecture, with the weights and buffers of a chain's modules."""
    with model_context(sample):
        model = type(model_space)(*model_space.trace_args, **model_space.trace_kwargs)
    state = {}
    for module in modules:
        for name, tensor in module.state_dict().items():
            state[_fixed_name(model_space, name)] = tensor
    model.load_state_dict(state, strict=True)
    return model


def _fixed_name(model_space, name):
    at, kept = model_space, []
    for part in name.split("."):
        if not isinstance(at, LayerChoice) and not (isinstance(at, Repeat) and part == "blocks"):
            kept.append(part)
        at = getattr(at, "_modules", {}).get(part)
    return ".".join(kept)
