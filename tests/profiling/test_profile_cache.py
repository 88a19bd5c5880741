"""Kept profiles: read back as they were, never taken for another's, damaged ones ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from naspipe.config.blocks import Block, Shared
from naspipe.config.definition import Definition
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Frozen
from naspipe.config.space import Space
from naspipe.data.cache import default_root
from naspipe.jobs.workload import Workload
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.profiling import profiles as profile_cache
from naspipe.profiling.profiles import (
    FORMAT,
    ProfileCache,
    cached_profile,
    fingerprint,
)

TABLE = CostTable(
    {
        (0, 0): LayerCost(1, 2, 3, 4, 5, 6, 7),
        **{(block, 0): LayerCost(10, 20, 30) for block in (1, 2)},
        **{(block, 2): LayerCost(11, 21, 31, 41, 1 << 40) for block in (1, 2)},
    },
    {(1, 2): "it has a hook", (2, 2): "it has a hook"},
)
"""Candidate 1 of the kind was not measured."""


def batch(rows: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    return lambda seed, sequence_id: {"input": torch.ones(rows, 8, dtype=dtype)}


def space(width: int = 8, more: int = 0, stem: Any = None, rule: Any = None) -> Space:
    kinds = [lambda: nn.Linear(8, width), nn.ReLU, nn.Tanh, *[nn.Identity] * more]
    shared = Shared("stem", stem or (lambda: nn.Linear(8, 8)), **({"rule": rule} if rule else {}))
    return Space("s", [shared, *(Block(kinds, kind="k") for _ in range(2))])


def workload(own: Space | None = None, data: Any = None, **changes: Any) -> Workload:
    definition = Definition(space="s", steps=1, recipe=Recipe(**changes.pop("recipe", {})))
    return Workload(
        space=own or space(),
        data=data or batch(),
        loss=nn.MSELoss(),
        definition=replace(definition, **changes.pop("definition", {})),
        **changes,
    )


class Measure:
    """Says what it is told to, and counts how often."""

    def __init__(self, table: CostTable = TABLE) -> None:
        self.table, self.count = table, 0

    def __call__(self) -> CostTable:
        self.count += 1
        return self.table


def test_measured_once(tmp_path: Path) -> None:
    measure = Measure()
    for _ in range(3):
        assert cached_profile(workload(), measure, tmp_path / "new" / "place") == TABLE
    assert measure.count == 1
    path = ProfileCache(workload(), tmp_path / "new" / "place").path
    assert [*path.parent.iterdir()] == [path]
    assert path.name == f"{fingerprint(workload())}.json"
    assert json.loads(path.read_text())["layers"]["1"] == [
        [0, 10, 20, 30, 0, 0, 0, 0, 0],
        [2, 11, 21, 31, 41, 1 << 40, 0, 0, 0],
    ]
    assert json.loads(path.read_text())["whole"] == [[1, 2, "it has a hook"]]


@pytest.mark.parametrize(
    "rows",
    [None, "text", {"1": 2}, [1], [[1, 2]], [[1, True, "why"]], [[1, 2, 3]], [[1, 7, "why"]]],
)
def test_reasons_that_are_damaged_are_left_out(tmp_path: Path, rows: object) -> None:
    cache = ProfileCache(workload(), tmp_path)
    assert cache.write(TABLE)
    record = json.loads(cache.path.read_text())
    cache.path.write_text(json.dumps({**record, "whole": rows}))
    assert cache.read() == CostTable(TABLE.costs)


def test_another_workload_is_measured_too(tmp_path: Path) -> None:
    measure = Measure()
    cached_profile(workload(), measure, tmp_path)
    cached_profile(workload(recompute=True), measure, tmp_path)
    assert measure.count == 2 and len([*tmp_path.iterdir()]) == 2


OTHERS: dict[str, Callable[[], str]] = {
    "width": lambda: fingerprint(workload(space(width=9))),
    "candidates": lambda: fingerprint(workload(space(more=1))),
    "module": lambda: fingerprint(workload(space(stem=lambda: nn.Linear(8, 8, bias=False)))),
    "repr": lambda: fingerprint(workload(space(stem=lambda: nn.LeakyReLU(0.25)))),
    "repr's value": lambda: fingerprint(workload(space(stem=lambda: nn.LeakyReLU(0.5)))),
    "dtype": lambda: fingerprint(workload(space(stem=lambda: nn.Linear(8, 8).double()))),
    "rule": lambda: fingerprint(workload(space(rule=Frozen()))),
    "batch's shape": lambda: fingerprint(workload(data=batch(5))),
    "batch's dtype": lambda: fingerprint(workload(data=batch(dtype=torch.float64))),
    "optimizer": lambda: fingerprint(workload(recipe={"optimizer": "Adam"})),
    "option": lambda: fingerprint(workload(recipe={"optimizer_options": {"momentum": 0.5}})),
    "precision": lambda: fingerprint(workload(recipe={"precision": "bf16"})),
    "threads": lambda: fingerprint(workload(recipe={"threads": 2})),
    "loss": lambda: fingerprint(workload(definition={"loss": "other"})),
    "recompute": lambda: fingerprint(workload(recompute=True)),
    "device": lambda: fingerprint(workload(), "cuda"),
    "one block more": lambda: fingerprint(
        workload(Space("s", [*space().blocks, space().blocks[-1]]))
    ),
}


def test_the_fingerprint_knows_what_costs_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: other() for name, other in OTHERS.items()}
    found["this"] = fingerprint(workload())
    monkeypatch.setattr(profile_cache, "FORMAT", FORMAT + 1)
    found["format"] = fingerprint(workload())
    monkeypatch.undo()
    real = profile_cache.describe_environment()
    for part, key in (("hardware", "processor"), ("software", "torch")):
        changed = {**real, part: {**real[part], key: "another"}}
        monkeypatch.setattr(profile_cache, "describe_environment", lambda made=changed: made)
        found[key] = fingerprint(workload())
    assert len(set(found.values())) == len(found)


def test_the_fingerprint_ignores_what_costs_do_not_depend_on() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def extra_repr(self) -> str:
            return f"{object()}"  # with its address, another one each time

    changes = {"lr": 0.7, "schedule": "cosine", "warmup_steps": 3}
    own = space(stem=Calls)
    first = fingerprint(workload(own))
    kept = [object() for _ in range(100)]
    assert fingerprint(workload(own, recipe=changes, definition={"seed": 3, "steps": 9})) == first
    assert len(kept) == 100


ROW = "[0, 1, 2, 3, 4, 5, 6, 7, 0]"


def content(first: str = f"[{ROW}]", second: str = f"[{ROW}]", form: int = FORMAT) -> str:
    return f'{{"format": {form}, "layers": {{"0": {first}, "1": {second}}}}}'


DAMAGED = [
    *("", "{", "null", "[]", "3", "{}", "[" * 100_000, "\udcff", content()[:-1]),
    f'{{"format": {FORMAT}}}',
    f'{{"format": {FORMAT}, "layers": []}}',
    f'{{"format": {FORMAT}, "layers": {{"0": [{ROW}]}}}}',
    content()[:-2] + ', "9": []}}',
    content(form=FORMAT - 1),
    content(second="[]"),
    content(second="{}"),
    content(second="[3]"),
    content(second=f"[{ROW}, {ROW}]"),
    content(second="[[0, 1, 2, 3, 4]]"),
    content(second="[[3, 1, 2, 3, 4, 5, 6, 7, 0]]"),
    *(
        content(second=f"[[0, 1, 2, 3, 4, {value}, 6, 7, 0]]")
        for value in ("-5", "5.0", "true", "null", '"5"', "1e999", "NaN", "9" * 25, "9" * 5000)
    ),
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_files_are_measured_anew(tmp_path: Path, text: str) -> None:
    cache = ProfileCache(workload(), tmp_path)
    cache.path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert cache.read() is None
    measure = Measure()
    for _ in range(2):
        assert cached_profile(workload(), measure, tmp_path) == TABLE
    assert measure.count == 1


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    """What the damaged ones above were made from."""
    cache = ProfileCache(workload(), tmp_path)
    cache.path.write_text(content())
    assert cache.read() == CostTable(
        {(block, 0): LayerCost(1, 2, 3, 4, 5, 6, 7) for block in range(3)}
    )


@pytest.mark.parametrize("place", ["file", "file/below", "directory"])
def test_what_cannot_be_kept_is_no_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    if place == "directory":
        (tmp_path / place / f"{fingerprint(workload())}.json").mkdir(parents=True)
    cache = ProfileCache(workload(), tmp_path / place)
    assert not cache.write(TABLE)
    assert cached_profile(workload(), Measure(), tmp_path / place) == TABLE
    assert (tmp_path / "file").read_text() == "mine"
    left = [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]
    assert left == []


def test_where_profiles_are_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached_profile(workload(), Measure())
    assert [path.parent for path in tmp_path.rglob("*.json")] == [tmp_path / "naspipe" / "profiles"]
    assert default_root().parent == tmp_path / "naspipe"
