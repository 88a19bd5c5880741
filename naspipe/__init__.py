"""Pipelined supernet training with the bits of a one-at-a-time PyTorch loop."""

from __future__ import annotations

import warnings
from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from naspipe.config.blocks import Block, Elastic, Shared
from naspipe.config.errors import (
    ConfigError,
    NaspipeError,
    RunInterruptedError,
    StageFailedError,
    StorageError,
)
from naspipe.config.execution import Execution
from naspipe.config.messages import says_keywords
from naspipe.config.rules import Every, Exact, Frozen, Lag
from naspipe.config.space import Space

if TYPE_CHECKING:
    from naspipe.api.block_rating import combine_blocks as combine_blocks
    from naspipe.api.block_rating import rate_blocks as rate_blocks
    from naspipe.api.distill import Blockwise as Blockwise
    from naspipe.api.distill import distill_blockwise as distill_blockwise
    from naspipe.api.observers import to_mlflow as to_mlflow
    from naspipe.api.observers import to_wandb as to_wandb
    from naspipe.api.retraining import retrain_subnets as retrain_subnets
    from naspipe.api.search import search_subnets as search_subnets
    from naspipe.api.train import train as train
    from naspipe.api.train import train_together as train_together
    from naspipe.api.train import workload as workload
    from naspipe.data.dataset_batches import from_dataset as from_dataset
    from naspipe.data.views import Views as Views
    from naspipe.distill.label_file import write_labels as write_labels
    from naspipe.distill.momentum import Momentum as Momentum
    from naspipe.distill.teachers import Teacher as Teacher
    from naspipe.export.composed import export_blocks as export_blocks
    from naspipe.export.composed import validate_blocks as validate_blocks
    from naspipe.export.exporter import export_subnet as export_subnet
    from naspipe.export.nni_form import to_nni as to_nni
    from naspipe.inputs.ends import chain as chain
    from naspipe.inputs.named import open_run as open_run
    from naspipe.inputs.run import Run as Run
    from naspipe.nni.adapter import from_nni as from_nni
    from naspipe.store.compare import compare_runs as compare_runs
    from naspipe.wire.reports import Observer as Observer

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
    "train": "naspipe.api.train",
    "train_together": "naspipe.api.train",
    "workload": "naspipe.api.train",
    "distill_blockwise": "naspipe.api.distill",
    "Run": "naspipe.inputs.run",
    "to_mlflow": "naspipe.api.observers",
    "to_wandb": "naspipe.api.observers",
    "open_run": "naspipe.inputs.named",
    "Teacher": "naspipe.distill.teachers",
    "Momentum": "naspipe.distill.momentum",
    "Views": "naspipe.data.views",
    "chain": "naspipe.inputs.ends",
    "rate_blocks": "naspipe.api.block_rating",
    "combine_blocks": "naspipe.api.block_rating",
    "Blockwise": "naspipe.api.distill",
    "write_labels": "naspipe.distill.label_file",
    "retrain_subnets": "naspipe.api.retraining",
    "search_subnets": "naspipe.api.search",
    "export_blocks": "naspipe.export.composed",
    "validate_blocks": "naspipe.export.composed",
    "export_subnet": "naspipe.export.exporter",
    "to_nni": "naspipe.export.nni_form",
    "from_dataset": "naspipe.data.dataset_batches",
    "from_nni": "naspipe.nni.adapter",
    "compare_runs": "naspipe.store.compare",
    "Observer": "naspipe.wire.reports",
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
