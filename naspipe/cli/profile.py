"""Show what the layers of a space cost on this machine: time and memory of each kind of block.

Costs are measured once per space, scale and device, and cached; `naspipe train` uses them to
balance its stages. Nothing is trained.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from naspipe.cli.data import add_data_place
from naspipe.cli.options import add_flags, add_options, flags, given
from naspipe.cli.output import print_table
from naspipe.config.blocks import Block
from naspipe.config.execution import Execution, first_gpu
from naspipe.config.space import Space
from naspipe.plan.costs import CostTable, LayerCost, LayerSize, SizeTable, first_of_kind

if TYPE_CHECKING:
    from naspipe.jobs.workload import Workload
    from naspipe.profiling.profiles import ProfileCache

_EXAMPLE = """\
examples:
  naspipe profile nlp.c1                        a table with one row per kind of block
  naspipe profile cv.c3 --data digits --fresh   measured again, without the cache
  naspipe profile nlp.c1 --recompute --json     every candidate, as JSON

Each cell shows the median over the candidates of a kind and, below it, the minimum and maximum.
If a split backward is bit-identical to a whole one, the columns inputs' and weights' show the times
of its two parts; see backward=split. The other candidates keep a whole backward, and lines below
the table give the reason.
Costs depend on what `--set` and `--recompute` change; use the same options as for `naspipe train`.
"""

_READ = "read"
_KEPT = "kept"
_NOT_KEPT = "not kept"
_NOTES = {
    _READ: "read from {}; --fresh measures anew",
    _KEPT: "measured now, kept in {}",
    _NOT_KEPT: "measured now; {} cannot be written, so the next run measures again",
}

_EXPECTED = "expected layers, data and a loss that compute, found"

_HEADS = (
    "kind", "measured", "forward\nms", "backward\nms", "inputs'\nms", "weights'\nms", "write\nms",
    "state\nMiB", "activations\nMiB",
)  # fmt: skip

_MOST_NAMED = 3
"""Maximum number of candidates that a line names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        space SPACE     name of a space, or MODULE:ATTRIBUTE
        --scale [tiny]  scale of a named space: tiny, small or paper
        --data NAME     name of a data set, or MODULE:FUNCTION
        """,
    )
    add_data_place(parser)
    add_flags(parser, flags(Execution, "device", "recompute"), {})
    add_options(
        parser,
        """
        --fresh             measure again instead of using cached costs
        --json              print every candidate as JSON
        --set KEY=VALUE...  any setting, as for naspipe train
        """,
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, or read cached measurements, and print them; return the exit status."""
    from naspipe.checks.machine import check_device
    from naspipe.checks.sketched import measure_sizes
    from naspipe.config.user_code import users_code
    from naspipe.inputs.named import find_measurable
    from naspipe.machine.gpus import NO_GPUS, find_gpus
    from naspipe.profiling.profiles import ProfileCache

    workload, execution = find_measurable(
        arguments.space,
        arguments.scale,
        arguments.data,
        arguments.data_dir,
        Execution(**given(Execution, arguments)),
        arguments.set,
    )
    device = execution.hardware.device
    gpus = NO_GPUS if device == "cpu" else find_gpus()
    check_device(device, len(gpus))
    with users_code(f"space {workload.space.name}: {_EXPECTED}"):
        cache = ProfileCache(workload, device=gpus.name_of(first_gpu(device)))
        costs, state = _costs(workload, cache, arguments.fresh, execution)
        sizes = measure_sizes(workload)
    kinds = summarize_kinds(workload.space, costs, sizes)
    if arguments.json:
        print(json.dumps(_as_json(workload, kinds, cache.path, state), indent=1))
    else:
        print_table(_HEADS, list(map(_cells, kinds)), left=("kind",), fold=("kind",))
        for line in whole_lines(workload.space, kinds):
            print(line)
        print(_NOTES[state].format(cache.path))
    return 0


def _costs(
    workload: Workload, cache: ProfileCache, is_fresh: bool, execution: Execution
) -> tuple[CostTable, str]:
    """Return the costs, and a text that says where they come from or are cached."""
    from naspipe.machine.determinism import deterministic_torch
    from naspipe.machine.forking import calm_collector, kept_heap, may_compute_here
    from naspipe.profiling.probes import refusing
    from naspipe.profiling.profiler import profile
    from naspipe.profiling.profiles import profile_apart

    kept = None if is_fresh else cache.read()
    if kept is not None:
        return kept, _READ
    if not may_compute_here(execution.hardware.device):
        device = first_gpu(execution.hardware.device)
        seconds = execution.watch.timeout_seconds
        costs = profile_apart(workload, seconds, device, expected=_EXPECTED)
    else:
        threads, name = workload.definition.recipe.threads, workload.space.name
        with deterministic_torch(threads), calm_collector(), kept_heap(), refusing(name, _EXPECTED):
            costs = profile(workload)
    return costs, _KEPT if cache.write(costs) else _NOT_KEPT


@dataclass(frozen=True, slots=True)
class KindCosts:
    """Measurements of one kind of block."""

    name: str
    blocks: tuple[str, ...]
    """Labels of the blocks of this kind."""
    sizes: tuple[LayerSize, ...]
    """One for every candidate, or for every setting of an elastic layer."""
    costs: dict[int, LayerCost]
    """Costs of the candidates, or settings, that were measured."""
    whole: dict[int, str]
    """Reasons why the backward of some candidates cannot be split."""
    settings: tuple[Mapping[str, Any], ...]
    """One for each candidate; empty unless the layer is elastic."""


def summarize_kinds(space: Space, costs: CostTable, sizes: SizeTable) -> list[KindCosts]:
    """Return the kinds of a space in chain order."""
    twins = first_of_kind(space)
    kinds: list[KindCosts] = []
    for twin in sorted(set(twins)):
        block = space.blocks[twin]
        label = space.labels[twin]
        options = range(block.num_options)
        kinds.append(
            KindCosts(
                name=block.kind or f"block {label}" if isinstance(block, Block) else label,
                blocks=tuple(
                    label for label, own in zip(space.labels, twins, strict=True) if own == twin
                ),
                sizes=tuple(sizes.of(twin, block.candidate(option)) for option in options),
                costs={n: costs.costs[twin, n] for n in options if (twin, n) in costs.costs},
                whole={n: costs.whole[twin, n] for n in options if (twin, n) in costs.whole},
                settings=tuple(map(block.setting, options)),
            )
        )
    return kinds


def _as_json(
    workload: Workload, kinds: Sequence[KindCosts], path: Path, state: str
) -> dict[str, Any]:
    definition = workload.definition
    return {
        "space": definition.space,
        "scale": definition.scale,
        "recompute": workload.recompute,
        "cache": {"path": str(path), "state": state},
        "kinds": [
            {
                "kind": kind.name,
                "blocks": list(kind.blocks),
                "layers": [
                    {
                        **({"setting": setting} if (setting := kind.settings[candidate]) else {}),
                        "candidate": candidate,
                        **size._asdict(),
                        **(kind.costs[candidate]._asdict() if candidate in kind.costs else {}),
                        **({"whole": why} if (why := kind.whole.get(candidate)) else {}),
                    }
                    for candidate, size in enumerate(kind.sizes)
                ],
            }
            for kind in kinds
        ],
    }


def _cells(kind: KindCosts) -> tuple[str, ...]:
    costs = kind.costs.values()
    many = f"{len(kind.blocks)} blocks" if len(kind.blocks) > 1 else ""
    return (
        f"{kind.name}\n{many}".strip(),
        f"{len(costs)} of {len(kind.sizes)}",
        _spread([cost.forward_ns for cost in costs], 1e6),
        _spread([cost.backward_ns for cost in costs], 1e6),
        *_parts(costs),
        _spread([cost.write_ns for cost in costs], 1e6),
        _spread([size.state_bytes for size in kind.sizes], 1 << 20),
        _spread([cost.activation_bytes for cost in costs], 1 << 20),
    )


def _parts(costs: Collection[LayerCost]) -> tuple[str, str]:
    """Return the times of the parts of a split backward, with the number of unsplit candidates."""
    split = [cost for cost in costs if cost.split != cost]
    if not split:
        return "whole", "whole"
    whole = f"\n{len(costs) - len(split)} whole" if len(split) < len(costs) else ""
    inputs, weights = [cost.inputs_ns for cost in split], [cost.weights_ns for cost in split]
    return _spread(inputs, 1e6) + whole, _spread(weights, 1e6) + whole


def whole_lines(space: Space, kinds: Sequence[KindCosts]) -> list[str]:
    """Return a line for each reason why backwards cannot be split, which names a few candidates."""
    found: dict[str, list[str]] = {}
    for kind in kinds:
        block = space.labels.index(kind.blocks[0])
        for option, why in kind.whole.items():
            found.setdefault(why, []).append(space.option_label(block, option))
    return [
        f"whole: {', '.join(labels[:_MOST_NAMED])}"
        f"{f' and {left} more' if (left := len(labels) - _MOST_NAMED) > 0 else ''}: {why}"
        for why, labels in found.items()
    ]


def _spread(values: Sequence[int], unit: float) -> str:
    """Return the median and, on a second line, the range if there are several values."""
    least, greatest = _short(min(values) / unit), _short(max(values) / unit)
    middle = _short(median(values) / unit)
    return middle if len(values) == 1 else f"{middle}\n{least} - {greatest}"


def _short(value: float) -> str:
    """Format with two decimals, or fewer for a large number."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
