"""Digests of the source that makes a run: naspipe's, and what spaces, data and losses are in."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import search_spaces
from naspipe.config.blocks import CopyOf
from naspipe.config.space import Elastic
from naspipe.config.user_code import is_users_module
from naspipe.runtime.jobs.workload import Workload


def code_digests(workloads: Sequence[Workload]) -> dict[str, str]:
    """Of each file, by its name: from its package on, or from its folder where it has none."""
    return dict(sorted((dict(_own().values()) | users_digests(workloads)).items()))


def users_digests(workloads: Sequence[Workload]) -> dict[str, str]:
    """The same of the user's own files, without libraries; those of one name count together."""
    found: dict[str, str] = {}
    for path in sorted(set(_users(workloads, only_own=True))):
        found[path.name] = f"{found.get(path.name, '')} {_digest(path)}".strip()
    return found


def code_digest(digests: Mapping[str, str]) -> str:
    """One for all of them."""
    text = "\0".join(f"{name}\0{digest}" for name, digest in sorted(digests.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _own() -> dict[Path, tuple[str, str]]:
    """Name and digest of each file of naspipe's: once, as what is imported stays as it was."""
    folders = (Path(__file__).parents[2], *map(Path, search_spaces.__path__))
    return {
        path: (str(path.relative_to(folder.parent)), _digest(path))
        for folder in folders
        for path in folder.rglob("*.py")
    }


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def _users(workloads: Sequence[Workload], only_own: bool = False) -> Iterator[Path]:
    for workload in workloads:
        blocks = workload.space.blocks
        makers = [factory for block in blocks for factory in block.candidates]
        elastic = [block for block in blocks if isinstance(block, Elastic)]
        makers += [block.apply for block in elastic if block.apply]
        # With "slice" a cut says what is stepped; otherwise it matters to exports alone.
        makers += [block.cut for block in elastic if block.cut and block.step == "slice"]
        parts = getattr(workload.data, "made_of", ())
        metrics = workload.metrics.values()
        for thing in (workload.data, *parts, workload.loss, *metrics, *map(_made_by, makers)):
            # What is compiled by exec may be of no module.
            name = getattr(thing, "__module__", type(thing).__module__) or ""
            if only_own and not is_users_module(name):
                continue
            module = sys.modules.get(name)
            file = Path(getattr(module, "__file__", None) or "")
            if file.is_file():  # not so of what is read from stdin, or typed
                yield file


def _made_by(factory: Any) -> Any:
    """What a factory calls, or the module that it copies."""
    while isinstance(factory, partial):
        factory = factory.original if isinstance(factory, CopyOf) else factory.func
    return factory
