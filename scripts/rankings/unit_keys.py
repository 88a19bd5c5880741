"""Units of work: plain data that says all that a result depends on, and a key made of it.

Whatever is changed makes another key; what a unit does not say is naspipe's default. So a field
is only ever added to units that need it, and records from before stay good.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.rankings.cell_space import Problem

Unit = dict[str, Any]

RECIPE = {
    "optimizer": "SGD", "optimizer_options": {"momentum": 0.9}, "lr": 0.05, "schedule": "cosine"
}  # fmt: skip
"""Of supernets and of networks alone; variants change it."""


def key_of(unit: Mapping[str, Any]) -> str:
    """Sixteen digits that differ where anything in a unit does."""
    text = json.dumps(unit, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def alone(problem: Problem, architecture: Sequence[int], steps: int, seed: int) -> Unit:
    """A network trained from its first weights; the seed is of these and of the batches."""
    return {
        "kind": "alone", "problem": problem.as_dict(), "architecture": list(architecture),
        "recipe": RECIPE, "steps": steps, "seed": seed,
    }  # fmt: skip


def supernet(problem: Problem, variant: Mapping[str, Any], passes: int, seed: int) -> Unit:
    """A supernet of a variant, so many forwards and backwards long."""
    said = {key: value for key, value in variant.items() if key not in ("recipe", "per_step")}
    return {
        "kind": "supernet", "problem": problem.as_dict(), "variant": said,
        "recipe": {**RECIPE, **variant.get("recipe", {})},
        "steps": passes // variant.get("per_step", 1), "seed": seed,
    }  # fmt: skip


def judging(
    of: Unit, architectures: Sequence[Sequence[int]], *, calibration: int, validation: int,
    ema: bool = False,
) -> Unit:  # fmt: skip
    """What these architectures reach on held-out data with a supernet's weights."""
    listed = [list(each) for each in architectures]
    return {
        "kind": "judging", "supernet": of, "architectures": listed,
        "calibration": calibration, "validation": validation, "ema": ema,
    }  # fmt: skip


def proxies(problem: Problem, architectures: Sequence[Sequence[int]], seed: int) -> Unit:
    """Zero-cost scores of these architectures, with the first weights of a seed."""
    listed = [list(each) for each in architectures]
    return {
        "kind": "proxies", "problem": problem.as_dict(), "architectures": listed, "seed": seed
    }  # fmt: skip


def search(
    of: Unit, *, budget: int, seed: int, calibration: int, validation: int, score: str = "loss"
) -> Unit:
    """Evolution with a supernet's weights."""
    return {
        "kind": "search", "supernet": of, "strategy": "evolution", "score": score,
        "budget": budget, "seed": seed, "calibration": calibration, "validation": validation,
    }  # fmt: skip


def found(
    problem: Problem, method: str, *, budget: int, short_steps: int, seed: int
) -> Unit:  # fmt: skip
    """A search without a supernet: so many networks, each trained alone for so many steps."""
    return {
        "kind": "found", "problem": problem.as_dict(), "method": method, "budget": budget,
        "short_steps": short_steps, "seed": seed,
    }  # fmt: skip


def words_of(unit: Mapping[str, Any]) -> str:
    """How lines of progress call a unit."""
    if unit["kind"] == "alone":
        edges = "".join(map(str, unit["architecture"]))
        return f"alone {edges}, {unit['steps']} steps, seed {unit['seed']}"
    if unit["kind"] == "found":
        return (
            f"{unit['method']} search of {unit['budget']} without a supernet, seed {unit['seed']}"
        )
    if unit["kind"] == "proxies":
        return f"proxies, seed {unit['seed']}"
    if unit["kind"] == "supernet":
        said = " ".join(f"{key} {value}" for key, value in unit["variant"].items())
        return f"supernet {said or 'csp uniform'}, {unit['steps']} steps, seed {unit['seed']}"
    return f"{unit['kind']} of {words_of(unit['supernet'])}"
