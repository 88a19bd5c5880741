"""Running statistics of a subnet taken anew, as a search takes them before it judges one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from naspipe.config.definition import Recipe
from naspipe.config.errors import ConfigError
from naspipe.export.assembly import ChainLayer, ModuleChain
from naspipe.frontend.display.watching import Told
from naspipe.frontend.given.run import Run
from naspipe.runtime.devices.determinism import block_seed, deterministic_torch, seed_draws
from naspipe.runtime.evaluating.calibration import (
    find_norms,
    fresh_statistics,
    may_keep_statistics,
)
from naspipe.runtime.jobs.workload import Batches
from naspipe.runtime.wire.ports import LaunchObserver
from naspipe.runtime.wire.reports import NotesToStderr


def with_own_statistics(
    chain: ModuleChain,
    run: Run,
    data: Batches | None,
    batches: int | None,
    observer: LaunchObserver | None = None,
) -> int:
    """:func:`calibrate`, and how many batches were taken; None takes none, and notes it.

    Raises:
        ConfigError: as :func:`calibrate`.
    """
    if calibrate(chain, run, data, batches or 0):
        return batches or 0
    if batches is None and (mixed := layers_with_statistics(chain)):
        (observer or Told(NotesToStderr())).on_note(
            f"{who_keep(mixed)} running statistics, which are exported as all subnets left them; "
            f"--calibrate 16 takes the subnet's own from batches of --data, 0 silences this"
        )
    return 0


def layers_with_statistics(chain: ModuleChain) -> list[str]:
    """The labels of a subnet's layers that keep running statistics."""
    return [each.label for each in chain.layers if may_keep_statistics(each.module)]


def who_keep(labels: Sequence[str]) -> str:
    """How a sentence about layers begins: the first of them, and how many others there are."""
    others = len(labels) - 1
    if not others:
        return f"layer {labels[0]} keeps"
    return f"layer {labels[0]} and {others} other{'s' * (others > 1)} keep"


def calibrate(chain: ModuleChain, run: Run, data: Batches | None, batches: int) -> bool:
    """Take the statistics of a subnet's norms from so many of the run's batches, and keep them.

    They are those that a search with as many batches takes, bit for bit: of all batches alike,
    each normalised by its own on its way. Returns whether there were any to take.

    Raises:
        ConfigError: when the subnet has such norms, but there are no data.
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
        _take(chain, seed, fed, keeping[-1])
    return True


def _take(chain: ModuleChain, seed: int, fed: list[Mapping[str, torch.Tensor]], last: int) -> None:
    states: list[tuple[torch.Tensor, ...]] = [()] * len(fed)
    for block, layer in enumerate(chain.layers[: last + 1]):

        def forward(number: int, block: int = block, layer: ChainLayer = layer) -> Any:
            seed_draws(block_seed(seed, 0, block, number))
            return layer.module(*states[number], *(fed[number][name] for name in layer.fields))

        norms = find_norms(layer.label, layer.module, partial(forward, 0))
        with fresh_statistics(layer.label, layer.module, norms, keeps=True):
            for number in range(len(fed)):
                result = forward(number)
                states[number] = result if isinstance(result, tuple) else (result,)
