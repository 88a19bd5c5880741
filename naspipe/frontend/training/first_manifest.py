"""What the manifest of a run says as it begins: what it is, and where it comes from."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naspipe.config.definition import Execution
from naspipe.frontend.checks.code_digests import code_digest, code_digests
from naspipe.frontend.checks.data_checks import first_digests
from naspipe.frontend.checks.input_checks import check_proof
from naspipe.frontend.training.validation_plan import describe
from naspipe.runtime.jobs.job import StreamJob
from naspipe.runtime.jobs.workload import Workload
from naspipe.sim.pipeline import Plan
from naspipe.trace.access.labels import described
from naspipe.trace.access.recorded_steps import RECORDED_STEPS

_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES",
    "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
)  # fmt: skip
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
_PASSWORD = re.compile(r"//[^/@\s]*@")


def first_manifest(
    stream: StreamJob, asked: Execution, plan: Plan, streams: int, **beside: Mapping[str, Any]
) -> dict[str, Any]:
    """Of one stream.

    Args:
        stream: as its stages get it.
        asked: how the run was to be carried out.
        plan: how it is.
        streams: all there are in it.
        beside: what is the same for all streams, such as ``provenance``; and ``source``.
    """
    workload = stream.workload
    space, definition = workload.space, workload.definition
    return {
        "format": 1,
        "status": "running",
        "definition": definition.as_dict(),
        "execution": {
            **asked.as_dict(),
            "order": plan.order,
            "window": plan.window,
            "budgets": list(plan.memory.budgets) if plan.memory else [],
            "partitions": sorted(str(each) for each in stream.cuts if each.num_blocks),
            "streams": streams,
        },
        RECORDED_STEPS: [],
        "requested": asked.as_dict(),
        "init_from": dict(workload.begun),
        **described(space, stream.stateless),
        "validation": describe(stream.validation),
        "batches": {"first": first_digests(workload)},
        "passes_per_step": definition.recipe.steps.passes,
        "proof": dict(check_proof(workload)),
        "measured": {},
        **{name: dict(each) for name, each in beside.items()},
    }


def provenance(workloads: Sequence[Workload], hosts: Sequence[str]) -> dict[str, Any]:
    """Of a life that begins now.

    Args:
        workloads: what is trained.
        hosts: the names of all workers' hosts; empty for this one.
    """
    return {
        "hosts": list(dict.fromkeys(hosts)) or [os.uname().nodename],
        "started": time.time(),
        "command": [_PASSWORD.sub("//***@", word) for word in sys.argv],
        "code": code_digest(code_digests(workloads)),
        "git": git_commit(Path.cwd()),
        "system": f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
        "allocator": allocator(),
        "threads": {name: os.environ[name] for name in _THREADS if name in os.environ},
    }


def git_commit(place: Path) -> str | None:
    """The commit that the repository around a place is at; None without a repository."""
    try:
        root = next(each for each in (place, *place.parents) if (each / ".git").exists())
        folder = root / ".git"
        if folder.is_file():  # of a work tree, or a submodule
            folder = (root / folder.read_text().partition(":")[2].strip()).resolve()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head[:64]
        name = head.partition(":")[2].strip()
        common = folder / "commondir"
        shared = (folder / common.read_text().strip()).resolve() if common.exists() else folder
        if (shared / name).exists():
            return (shared / name).read_text().strip()[:64]
        packed = (shared / "packed-refs").read_text().splitlines()
        return next(line.split()[0] for line in packed if line.endswith(f" {name}"))
    except (OSError, StopIteration, UnicodeDecodeError):
        return None


def allocator() -> str:
    """What gives out memory in this process."""
    try:
        mapped = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return "unknown"
    found = (name for name in _ALLOCATORS if name in mapped)
    return next(found, " ".join(filter(None, platform.libc_ver())) or "the C library's")
