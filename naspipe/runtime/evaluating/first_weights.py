"""Subnets with the weights that their layers begin with, as ordinary modules in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from naspipe.config.definition import Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.runtime.devices.determinism import block_seed, seed_draws
from naspipe.runtime.layers.layer_store import LayerStore

Tensors = tuple[torch.Tensor, ...]

Around = Callable[[str, nn.Module, Callable[[], object]], AbstractContextManager[object]]


def _bare(label: str, module: nn.Module, call: Callable[[], object]) -> nullcontext[None]:
    return nullcontext()


class FirstLayers:
    """The layers of a space as a run of a seed makes them; each is made once.

    What the run learnt, and weights that it was given to begin with, have no part in them.

    Args:
        space: whose layers.
        seed: of the run; each layer has its own.
        prepare: is called with each module that was made, and may change it.
        way: what messages say of how the layers are computed, as in ``in float64``.
    """

    def __init__(
        self, space: Space, seed: int, prepare: Callable[[nn.Module], object], way: str
    ) -> None:
        self._space, self._seed, self._way = space, seed, way
        self._prepare = prepare
        self._store = LayerStore(space, seed, Recipe(), trains=False)
        self._prepared: set[LayerId] = set()

    def modules(self, choices: Sequence[int]) -> list[nn.Module]:
        """The layers of a subnet in order.

        Raises:
            ConfigError: when the choices do not fit the space, or a factory fails.
        """
        chain = enumerate(self._space.chain(choices))
        return [self._module(block, self._candidate(block, option)) for block, option in chain]

    def fields(self, choices: Sequence[int]) -> tuple[str, ...]:
        """Batch fields that a subnet's layers name, each once."""
        blocks = range(len(self._space.chain(choices)))
        return tuple(dict.fromkeys(name for block in blocks for name in self._space.fields(block)))

    def forward(
        self, choices: Sequence[int], batch: Mapping[str, torch.Tensor], around: Around = _bare
    ) -> Tensors:
        """What a subnet returns for a batch; draws are keyed by the block.

        Args:
            choices: of the subnet.
            batch: what its layers read.
            around: makes the context in which a layer is called, from its label, its module, and a
                function that calls it in training or in evaluation mode, as the module is.

        Raises:
            ConfigError: when a layer fails, or returns anything but tensors.
        """
        state: Tensors = ()
        for block, option in enumerate(self._space.chain(choices)):
            module = self._module(block, self._candidate(block, option))
            fields = [batch[name].clone() for name in self._space.fields(block)]
            label = self._space.option_label(block, option)
            expected = f"layer {label}: expected a layer that computes tensors {self._way}, found"
            forward = self._space.blocks[block].forward_of(module, option)
            call = partial(self._call, forward, block, (*state, *fields), expected)
            with around(label, module, call):
                result = call()
            state = result if isinstance(result, tuple) else (result,)
            if not all(isinstance(each, torch.Tensor) for each in state):
                raise ConfigError(f"{expected} {type(result).__name__}")
        return state

    def _call(self, forward: Callable[..., Any], block: int, inputs: Tensors, expected: str) -> Any:
        seed_draws(block_seed(self._seed, 0, block))
        with users_code(expected):
            return forward(*(each.view_as(each) for each in inputs))

    def _candidate(self, block: int, option: int) -> int:
        return self._space.blocks[block].candidate(option)

    def _module(self, block: int, candidate: int) -> nn.Module:
        layer = LayerId(FIRST_STREAM, block, candidate)
        label = self._space.label(block, candidate)
        with users_code(f"layer {label}: expected a torch.nn.Module, found"):
            module = self._store[layer].module
        if layer not in self._prepared:
            self._prepare(module)
            self._prepared.add(layer)
        return module
