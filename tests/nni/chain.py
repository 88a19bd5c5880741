"""A subnet's layers one after the other, and NNI's fixed model with the same weights."""

from __future__ import annotations

import random

import torch
import torch.fx as fx
from nni.nas.nn.pytorch import LayerChoice, Repeat
from nni.nas.space import model_context

from tests.oracle import bits


def samples(space, count, seed=3):
    """Architectures: every label drawn on its own."""
    draw = random.Random(seed)
    return [
        {label: draw.choice(options) for label, options in space.decisions.values.items()}
        for _ in range(count)
    ]


def layers(space, sample, known=None):
    """The modules of an architecture, made as a run makes them; ``known`` keeps them."""
    chain = space.chain(space.decisions.choices_of(sample))
    known = {} if known is None else known
    for position, candidate in enumerate(chain):
        if (position, candidate) not in known:
            torch.manual_seed(position)
            known[position, candidate] = space.blocks[position].candidates[candidate]()
    return [known[key] for key in enumerate(chain)]


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


def differing(model_space, space, architectures, x):
    """Architectures whose chain is not NNI's own model of them; knows nothing of counterparts.

    Modules with tensors are paired in the order in which they run, so the two must run the same
    ones; then the weights are copied, and both must leave the same bits.
    """
    known, wrong = {}, []
    for sample in architectures:
        chain = layers(space, sample, known)
        with model_context(sample):
            model = type(model_space)(*model_space.trace_args, **model_space.trace_kwargs)
        sides = _owners(chain, x), _owners([model], x)
        if list(map(_form, sides[0])) != list(map(_form, sides[1])):
            wrong.append((sample, "modules"))
            continue
        pairs = [(one[1], other[1]) for one, other in zip(*sides, strict=True)]
        for one, other in pairs:
            for name, tensor in one.items():
                other[name].data.copy_(tensor.data)
        for training in (False, True):
            found = []
            for modules in (chain, [model]):
                for module in modules:
                    module.train(training)
                torch.manual_seed(5)
                found.append(bits(forward(modules, x.clone())))
            states = [
                [bits(t) for each in side for t in each.values()]
                for side in zip(*pairs, strict=True)
            ]
            if found[0] != found[1] or states[:1] != states[1:]:
                wrong.append((sample, f"training={training}"))
    return wrong


def _owners(modules, x):
    """Class and own tensors of whatever has some, in the order in which it runs first.

    What the forward of a container reads itself comes last: a chain has it as attributes.
    """
    order, hooks = {}, []
    for each in (part for module in modules for part in module.modules()):
        hooks.append(each.register_forward_pre_hook(lambda m, _: order.setdefault(m)))
    training = {each: each.training for module in modules for each in module.modules()}
    with torch.no_grad():
        forward([module.eval() for module in modules], x.clone())
    for hook in hooks:
        hook.remove()
    for each, was in training.items():
        each.training = was
    leaves, readers = [], []
    for module in order:
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "get_attr":
                    owner, _, name = node.target.rpartition(".")
                    readers.append(("", {name: getattr(module.get_submodule(owner), name)}))
        elif own := _own(module):
            is_leaf = not list(module.children())
            kind = type(module).__name__.removeprefix("Mutable")
            (leaves if is_leaf else readers).append((kind if is_leaf else "", own))
    return leaves + readers


def _own(module):
    return {
        **dict(module.named_parameters(recurse=False)),
        **dict(module.named_buffers(recurse=False)),
    }


def _form(owner):
    kind, tensors = owner
    return kind, {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
