"""Batches that several stages make for themselves: each tells which one it has made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from naspipe.data.keyed.batch_digest import short_digest
from naspipe.runtime.jobs.workload import Batches, Workload
from naspipe.runtime.wire.ports import Reporter


def watched(workloads: Sequence[Workload], reporter: Reporter) -> list[Workload]:
    """The workloads of a stage that has others beside it; what they train on is reported.

    A stage makes the batches that its blocks and losses take fields of. Where data are no function
    of their seed and number, the input of one stage and the target of another are of two batches.
    """
    return [
        replace(each, data=_Watched(each.data, stream, reporter)) if each.is_trained else each
        for stream, each in enumerate(workloads)
    ]


class _Watched:
    def __init__(self, data: Batches, stream: int, reporter: Reporter) -> None:
        self._data, self._stream, self._reporter = data, stream, reporter

    def __call__(self, seed: int, number: int) -> Mapping[str, torch.Tensor]:
        batch = self._data(seed, number)
        body = {"stream": self._stream, "number": number, "digest": short_digest(batch)}
        self._reporter.report("batch", body)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)
