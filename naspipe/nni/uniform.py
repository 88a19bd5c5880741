"""Whether a traced forward is that of every architecture.

A trace follows Python once. What the forward decides there by itself, from a value that NNI has
put in for a label, would be the same for all architectures. So NNI's own models of a few
architectures are traced too, and must compute the same between their modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from naspipe.core.errors import ConfigError
from naspipe.nni.candidates import counterpart, fixed_model
from naspipe.nni.cut import is_made_where_used
from naspipe.nni.mutables import Sample
from naspipe.nni.trace import either, opened_in, trace_opened

MAX_ARCHITECTURES = 4
"""Architectures that are traced: every label's first value, its second, and so on."""


def check_uniform(space: Any, graph: fx.Graph, values: Mapping[str, Sequence[Any]]) -> None:
    """Compare what is computed outside the modules.

    Raises:
        ConfigError: naming what differs.
    """
    name = type(space).__name__
    longest = max(map(len, values.values()), default=1)
    for number in range(min(longest, MAX_ARCHITECTURES)):
        sample = {
            label: options[min(number, len(options) - 1)] for label, options in values.items()
        }
        with torch.random.fork_rng(devices=[]):
            model = fixed_model(space, sample)
        opened = {id(module) for module in _counterparts(space, model)}
        expected = list(_between_modules(trace_opened(model, opened, name), sample))
        found = list(_between_modules(graph, sample))
        for ours, theirs in zip([*found, "nothing"], [*expected, "nothing"], strict=False):
            if ours != theirs:
                raise ConfigError(
                    f"space {name}: its forward depends on labels outside of modules and choices: "
                    f"expected {ours} for every architecture, found {theirs} for {sample!r:.200}; "
                    f"move that into a module that is made with the values"
                )


def _counterparts(space: Any, model: Any) -> Iterator[Any]:
    for path in opened_in(space):
        try:
            yield counterpart(space, model, path) if path else model
        except AttributeError:
            continue  # a repetition that this architecture does not have


def _between_modules(graph: fx.Graph, sample: Sample) -> Iterator[str]:
    """Functions and methods in order, with their constants; other values have no name here."""
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or is_made_where_used(node):
            continue
        if node.target is either:
            continue
        if not all(region.is_active(sample) for region in node.meta["regions"]):
            continue
        target = node.target if isinstance(node.target, str) else node.target.__name__
        args = fx.map_arg((node.args, node.kwargs), lambda _: ...)  # type: ignore[arg-type, return-value]
        yield f"{target}{args}".replace("Ellipsis", "...")
