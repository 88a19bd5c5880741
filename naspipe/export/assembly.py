"""A subnet of a run as a chain of modules with the run's weights and, optionally, own statistics.

The weights are the final weights of the run, or their moving averages. Running statistics can be
recomputed from batches of the run, as a search does before it scores a subnet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from naspipe.api.observers import Told
from naspipe.config.blocks import Block, Elastic, LossBlock
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.evaluation.calibration import find_norms, fresh_statistics, may_keep_statistics
from naspipe.inputs.run import Run
from naspipe.jobs.workload import Batches
from naspipe.machine.determinism import block_seed, deterministic_torch, seed_draws
from naspipe.search.search_directory import find_best
from naspipe.store.checkpoints import read_checkpoint
from naspipe.streams.stream_file import read_stream
from naspipe.wire.ports import LaunchObserver
from naspipe.wire.reports import NotesToStderr
from naspipe.worker.blocks.specs import form_of, form_text
from naspipe.worker.checkpoints.restored import layer_key, load_layer
from naspipe.worker.layers.layer_store import LayerStore


@dataclass(frozen=True, slots=True)
class ChainLayer:
    """One layer of a subnet."""

    name: str
    """Python identifier: the name of the shared layer, or ``block`` and the block's number."""
    label: str
    fields: tuple[str, ...]
    module: nn.Module
    is_trained: bool
    """True if the run ever used it; otherwise it has the run's initial weights."""
    whole: Callable[..., Any] | None = None
    """For a layer that was cut, the computation by the whole layer."""


@dataclass(frozen=True, slots=True)
class ModuleChain:
    """A subnet: its layers in order."""

    choices: tuple[int, ...]
    layers: tuple[ChainLayer, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Batch fields that the layers use, each once, in the order of the chain."""
        return tuple(dict.fromkeys(field for layer in self.layers for field in layer.fields))

    def __call__(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the output of the last layer for a batch."""
        state: tuple[torch.Tensor, ...] = ()
        for layer in self.layers:
            state = as_outputs(layer.module(*state, *(batch[name] for name in layer.fields)))
        return state


def find_choices(run: Run, text: str) -> tuple[int, ...]:
    """Return the choices given by ``first``, ``last``, a sequence ID or a list such as ``0,1,3``.

    ``best`` is the best subnet of the run's newest search.

    Raises:
        ConfigError: if the text is not a subnet of the run or of its space.
    """
    if re.fullmatch(r"\s*[0-9]{1,9}\s*(,\s*[0-9]{1,9}\s*)*,[0-9\s]*", text):
        choices = tuple(int(part) for part in text.split(",") if part.strip())
        run.space.chain(choices)
        return choices
    if text == "best":
        choices = find_best(run.directory.path).choices
        run.space.chain(choices)
        return choices
    stream = read_stream(run.directory.stream, run.space.candidate_counts)
    if text in ("first", "last") or re.fullmatch("[0-9]{1,9}", text):
        number = (
            {"first": 0, "last": len(stream) - 1}.get(text) if not text.isdigit() else int(text)
        )
        if number is not None and 0 <= number < len(stream):
            return stream[number]
    raise ConfigError(
        f"subnet {text!r:.80}: expected best, first, last, a sequence ID from 0 to "
        f"{len(stream) - 1}, or one choice per choice block, as in 0,1,3"
    )


def assemble(run: Run, choices: Sequence[int], *, ema: bool = False) -> ModuleChain:
    """Return the layers of a subnet with the final weights of the run, in evaluation mode.

    The layer of a loss is omitted. With ``ema`` the weights are their moving averages.

    Raises:
        ConfigError: if the choices or the checkpoint do not fit the space, or if the run kept no
            averages.
    """
    if ema:
        run.check_averages()
    definition = run.manifest["definition"]
    recipe = Recipe(**definition["recipe"])
    checkpoint = read_checkpoint(run.directory.checkpoint("final"))
    store = LayerStore(run.space, definition["seed"], recipe)
    names = chain_names(run.space)
    layers = []
    for position, option in enumerate(run.space.chain(choices)):
        block = run.space.blocks[position]
        if isinstance(block, LossBlock):
            break
        layer = LayerId(FIRST_STREAM, position, block.candidate(option))
        label = run.space.option_label(position, option)
        what = f"layer {label}: expected a torch.nn.Module, found"
        with deterministic_torch(recipe.threads), users_code(what):
            module = store[layer].module
        key = layer_key(run.space, layer)
        if is_trained := key in checkpoint.versions:
            load_layer(module, key, checkpoint.tensors, ema)
        fields, whole = run.space.fields(position), None
        if isinstance(block, Elastic):
            whole = block.forward_of(module.eval(), option)
            what = f"layer {block.name}[{block.text(option)}]: expected its cut to return a"
            with users_code(f"{what} torch.nn.Module, found"):
                module = block.cut_of(module, option)
            if not isinstance(module, nn.Module):
                raise ConfigError(f"{what} torch.nn.Module, found {type(module).__name__}")
        layers.append(ChainLayer(names[position], label, fields, module.eval(), is_trained, whole))
    return ModuleChain(tuple(choices), tuple(layers))


def check_cuts(chain: ModuleChain, batch: Mapping[str, torch.Tensor]) -> None:
    """Check that layers that were cut compute the same as the whole layers, except for rounding.

    Raises:
        ConfigError: naming the first layer that does not.
    """
    state: tuple[torch.Tensor, ...] = ()
    for layer in chain.layers:
        given = (*state, *(batch[name] for name in layer.fields))
        what = f"layer {layer.label}: expected its cut to compute what the layer does with this"
        with users_code(f"{what} setting, found"):
            state = as_outputs(layer.module(*given))
            expected = state if layer.whole is None else as_outputs(layer.whole(*given))
        forms = form_of(expected), form_of(state)
        if forms[0] != forms[1]:
            raise ConfigError(f"{what} setting, {form_text(forms[0])}, found {form_text(forms[1])}")
        for one, other in zip(expected, state, strict=True):
            wide = one.double(), other.double()
            if not torch.allclose(*wide, rtol=1e-3, atol=1e-4, equal_nan=True):
                difference = float((one - other).abs().max())
                raise ConfigError(f"{what} setting, found a difference of {difference:.2g}")


def as_outputs(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def chain_names(space: Space) -> list[str]:
    """Return a unique Python name for each block of the chain."""
    taken = {block.name.replace("-", "_") for block in space.blocks if not isinstance(block, Block)}
    names = []
    for block, label in zip(space.blocks, space.labels, strict=True):
        if isinstance(block, Block):
            name = f"block{label}"
            while name in taken:
                name += "_"
            names.append(name)
        else:
            names.append(block.name.replace("-", "_"))
    return names


def with_own_statistics(
    chain: ModuleChain,
    run: Run,
    data: Batches | None,
    batches: int | None,
    observer: LaunchObserver | None = None,
) -> int:
    """Calibrate, and return the number of batches; if ``batches`` is None, only write a note."""
    if calibrate(chain, run, data, batches or 0):
        return batches or 0
    if batches is None and (
        mixed := [each.label for each in chain.layers if may_keep_statistics(each.module)]
    ):
        (observer or Told(NotesToStderr())).on_note(
            f"{who_keep(mixed)} running statistics, which are exported as all subnets left them; "
            f"--calibrate 16 takes the subnet's own from batches of --data, 0 silences this"
        )
    return 0


def who_keep(labels: Sequence[str]) -> str:
    """Return the start of a sentence about layers: the first label, and the number of others."""
    others = len(labels) - 1
    if not others:
        return f"layer {labels[0]} keeps"
    return f"layer {labels[0]} and {others} other{'s' * (others > 1)} keep"


def calibrate(chain: ModuleChain, run: Run, data: Batches | None, batches: int) -> bool:
    """Recompute the statistics of a subnet's norms from this number of the run's batches.

    The statistics are bitwise equal to those of a search with the same number of batches: all
    batches count equally, and each is normalised by its own statistics. Return True if there were
    any statistics to compute.

    Raises:
        ConfigError: if the subnet has such norms, but no data are given.
    """
    if batches < 0:
        raise ConfigError(f"calibrate: expected 0 batches or more, found {batches}")
    keeping = [n for n, layer in enumerate(chain.layers) if may_keep_statistics(layer.module)]
    if not keeping or not batches:
        return False
    if data is None:
        raise ConfigError(
            f"layer {chain.layers[keeping[0]].label} keeps running statistics: expected the run's "
            f"--data to take them from, as the search did; give them, or --calibrate 0 to keep "
            f"the supernet's"
        )
    definition = run.manifest["definition"]
    seed, recipe = definition["seed"], Recipe(**definition["recipe"])
    fed = [data(seed, number) for number in range(batches)]
    is_bf16 = recipe.precision == "bf16"
    casts = torch.autocast("cpu", dtype=torch.bfloat16) if is_bf16 else nullcontext()
    with deterministic_torch(recipe.threads), torch.no_grad(), casts:
        states: list[tuple[torch.Tensor, ...]] = [()] * len(fed)
        for block, layer in enumerate(chain.layers[: keeping[-1] + 1]):

            def forward(number: int, block: int = block, layer: ChainLayer = layer) -> Any:
                seed_draws(block_seed(seed, 0, block, number))
                return layer.module(*states[number], *(fed[number][name] for name in layer.fields))

            norms = find_norms(layer.label, layer.module, partial(forward, 0))
            with fresh_statistics(layer.label, layer.module, norms, keeps=True):
                for number in range(len(fed)):
                    states[number] = as_outputs(forward(number))
    return True
