"""Digests of the source that makes a run: naspipe's, and what spaces, data and losses are in."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import search_spaces
from naspipe.runtime.jobs.workload import Workload


def code_digests(workloads: Sequence[Workload]) -> dict[str, str]:
    """Of each file, by its name: from its package on, or from its folder where it has none."""
    return {
        name: hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        for name, path in sorted(_sources(workloads))
    }


def code_digest(digests: Mapping[str, str]) -> str:
    """One for all of them."""
    text = "\0".join(f"{name}\0{digest}" for name, digest in sorted(digests.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _sources(workloads: Sequence[Workload]) -> set[tuple[str, Path]]:
    folders = (Path(__file__).parents[2], *map(Path, search_spaces.__path__))
    found = {
        (str(path.relative_to(folder.parent)), path)
        for folder in folders
        for path in folder.rglob("*.py")
    }
    known = {path for _, path in found}
    return found | {(path.name, path) for path in _users(workloads) if path not in known}


def _users(workloads: Sequence[Workload]) -> Iterator[Path]:
    for workload in workloads:
        makers = [factory for block in workload.space.blocks for factory in block.candidates]
        parts = getattr(workload.data, "made_of", ())
        metrics = workload.metrics.values()
        for thing in (workload.data, *parts, workload.loss, *metrics, *makers):
            module = sys.modules.get(getattr(thing, "__module__", type(thing).__module__))
            if file := getattr(module, "__file__", None):
                yield Path(file)
