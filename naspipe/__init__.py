"""Pipelined supernet training with the bits of a one-at-a-time PyTorch loop."""

from __future__ import annotations

import warnings
from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from naspipe.config.definition import Execution
from naspipe.config.errors import (
    ConfigError,
    NaspipeError,
    RunInterruptedError,
    StageFailedError,
    StorageError,
)
from naspipe.config.messages import says_keywords
from naspipe.config.rules import Every, Exact, Frozen, Lag
from naspipe.config.space import Block, Elastic, Shared, Space

if TYPE_CHECKING:
    from naspipe.data.keyed.dataset_batches import from_dataset as from_dataset
    from naspipe.data.views import Views as Views
    from naspipe.export.composed import export_blocks as export_blocks
    from naspipe.export.composed import validate_blocks as validate_blocks
    from naspipe.export.exporter import export_subnet as export_subnet
    from naspipe.export.nni_form import to_nni as to_nni
    from naspipe.frontend.display.trackers import to_mlflow as to_mlflow
    from naspipe.frontend.display.trackers import to_wandb as to_wandb
    from naspipe.frontend.given.opened_run import open_run as open_run
    from naspipe.frontend.given.plain_chain import chain as chain
    from naspipe.frontend.given.run import Run as Run
    from naspipe.frontend.search.api import search_subnets as search_subnets
    from naspipe.frontend.search.block_rating import combine_blocks as combine_blocks
    from naspipe.frontend.search.block_rating import rate_blocks as rate_blocks
    from naspipe.frontend.search.retraining import retrain_subnets as retrain_subnets
    from naspipe.frontend.teaching.label_writing import write_labels as write_labels
    from naspipe.frontend.teaching.momentum import Momentum as Momentum
    from naspipe.frontend.teaching.teachers import Teacher as Teacher
    from naspipe.frontend.training.api import train as train
    from naspipe.frontend.training.api import train_together as train_together
    from naspipe.frontend.training.api import workload as workload
    from naspipe.frontend.training.distillation import distill_blockwise as distill_blockwise
    from naspipe.frontend.training.distilled import Blockwise as Blockwise
    from naspipe.nni.adapter import from_nni as from_nni
    from naspipe.runtime.wire.reports import Observer as Observer
    from naspipe.trace.reading.compare import compare_runs as compare_runs

__all__ = [
    "Block", "Blockwise", "ConfigError", "Elastic", "Every", "Exact", "Execution", "Frozen", "Lag",
    "Momentum", "NaspipeError", "Observer", "Run", "RunInterruptedError", "Shared", "Space",
    "StageFailedError", "StorageError", "Teacher", "Views", "chain", "combine_blocks",
    "compare_runs", "distill_blockwise", "elastic", "export_blocks", "export_subnet",
    "from_dataset", "from_nni", "losses", "mixed", "open_run", "rate_blocks", "retrain_subnets",
    "search_subnets", "to_mlflow", "to_nni", "to_wandb", "train", "train_together",
    "validate_blocks", "workload", "write_labels",
]  # fmt: skip
__version__ = "0.1.0"

_LATER = {
    "train": "naspipe.frontend.training.api",
    "train_together": "naspipe.frontend.training.api",
    "workload": "naspipe.frontend.training.api",
    "distill_blockwise": "naspipe.frontend.training.distillation",
    "Run": "naspipe.frontend.given.run",
    "to_mlflow": "naspipe.frontend.display.trackers",
    "to_wandb": "naspipe.frontend.display.trackers",
    "open_run": "naspipe.frontend.given.opened_run",
    "Teacher": "naspipe.frontend.teaching.teachers",
    "Momentum": "naspipe.frontend.teaching.momentum",
    "Views": "naspipe.data.views",
    "chain": "naspipe.frontend.given.plain_chain",
    "rate_blocks": "naspipe.frontend.search.block_rating",
    "combine_blocks": "naspipe.frontend.search.block_rating",
    "Blockwise": "naspipe.frontend.training.distilled",
    "write_labels": "naspipe.frontend.teaching.label_writing",
    "retrain_subnets": "naspipe.frontend.search.retraining",
    "search_subnets": "naspipe.frontend.search.api",
    "export_blocks": "naspipe.export.composed",
    "validate_blocks": "naspipe.export.composed",
    "export_subnet": "naspipe.export.exporter",
    "to_nni": "naspipe.export.nni_form",
    "from_dataset": "naspipe.data.keyed.dataset_batches",
    "from_nni": "naspipe.nni.adapter",
    "compare_runs": "naspipe.trace.reading.compare",
    "Observer": "naspipe.runtime.wire.reports",
}


# NNI 3.0 says so of two classes of newer versions of torch, at every import; neither is used.
warnings.filterwarnings("ignore", ".* is found to be not a nn.Module", RuntimeWarning)


def __getattr__(name: str) -> Any:
    """Load what needs torch, or much else, only when it is asked for.

    Errors of functions are said in Python's words.
    """
    if name in ("elastic", "losses", "mixed"):
        return import_module(f"naspipe.{name}")
    if name in _LATER:
        found = getattr(import_module(_LATER[name]), name)
        globals()[name] = says_keywords(found) if isfunction(found) else found
        return globals()[name]
    raise AttributeError(f"module naspipe has no attribute {name!r}")


def __dir__() -> list[str]:
    """Everything public, whether it is loaded yet or not."""
    return sorted({*__all__, "__doc__", "__file__", "__name__", "__path__", "__version__"})
