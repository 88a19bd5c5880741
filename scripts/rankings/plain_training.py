"""A network alone, by the plain loop: the bits are those of ``naspipe.train`` with one subnet.

A step of naspipe costs something for each block, whatever the block computes. Here blocks compute
so little that a network alone takes two thirds of the time without. A test compares the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scripts.rankings.cell_space import Setting, torch
from scripts.rankings.unit_keys import Unit

from naspipe.config.definition import Recipe  # isort: skip
from naspipe.config.recipe import learning_rate  # isort: skip
from naspipe.machine.determinism import (  # isort: skip
    deterministic_torch,
    layer_seed,
    seed_draws,
)


def train_plainly(
    unit: Unit, own: Setting, chain: Sequence[int]
) -> tuple[list[torch.nn.Module], list[float]]:
    """The blocks of a subnet, trained from the first weights of a seed, and all losses."""
    seed, steps, recipe = unit["seed"], unit["steps"], Recipe(**unit["recipe"])
    losses = []
    with deterministic_torch(1):
        blocks = first_blocks(own, chain, seed)
        parameters = [p for block in blocks for p in block.parameters()]
        optimizer = getattr(torch.optim, recipe.optimizer)(
            parameters, lr=recipe.lr, **recipe.optimizer_options
        )
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = learning_rate(recipe, step, steps)
            batch = own.train(seed, step)
            loss = own.loss(forward(blocks, batch["input"])[0], batch["target"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return blocks, losses


def first_blocks(own: Setting, chain: Sequence[int], seed: int) -> list[torch.nn.Module]:
    """Modules with the parameters that naspipe begins with; nothing in them draws later."""
    blocks = []
    for number, option in enumerate(chain):
        seed_draws(layer_seed(seed, number, option))
        blocks.append(own.space.blocks[number].candidates[option]().train())
    return blocks


def forward(blocks: Sequence[torch.nn.Module], images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs of the last block; each block is given one alias of each of its inputs."""
    state: Any = (images,)
    for block in blocks:
        out = block(*(each.view_as(each) for each in state))
        state = out if isinstance(out, tuple) else (out,)
    return tuple(state)
