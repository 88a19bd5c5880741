"""NNI's RandomOneShot on the same layers and batches: Lightning trains the supernet."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from naspipe.config.blocks import Shared
from naspipe.jobs.workload import Workload
from scripts.peers.work import SEED, Work, figures, made, optimizer_of

MISSING = "NNI 3.0 and Lightning are not installed: pip install nni==3.0 pytorch_lightning"


class Batches(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The same batches by number; a batch is one item."""

    def __init__(self, named: Workload, steps: int) -> None:
        self.data, self.steps = named.data, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        if number >= self.steps:
            raise IndexError(number)
        return dict(self.data(SEED, number))


def random_one_shot(work: Work) -> dict[str, Any]:
    """Steps per second of the training itself; NNI draws the subnets, and cannot be seeded.

    Raises:
        ImportError: where NNI or Lightning is missing.
    """
    warnings.simplefilter("ignore")
    from nni.nas.evaluator.pytorch.lightning import DataLoader, Lightning, Trainer
    from nni.nas.execution import SequentialExecutionEngine
    from nni.nas.space import RawFormatModelSpace
    from nni.nas.strategy import RandomOneShot

    logging.getLogger("nni").setLevel(logging.WARNING)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    named = work.named()
    module, clock, losses = _training_module(named)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
        num_sanity_val_steps=0, callbacks=[clock],
    )  # fmt: skip
    loaders = [DataLoader(Batches(named, work.steps), batch_size=None) for _ in range(2)]
    evaluator = Lightning(module, trainer, train_dataloaders=loaders[0], val_dataloaders=loaders[1])
    space = RawFormatModelSpace(_model_space(named), evaluator)
    RandomOneShot()(space, SequentialExecutionEngine())
    if len(losses) != work.steps:
        raise RuntimeError(f"NNI: expected {work.steps} steps, found {len(losses)}")
    return figures(work.steps, clock.seconds, [float(loss) for loss in losses])


def _model_space(named: Workload) -> Any:
    """The chain with a LayerChoice for each choice block."""
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace

    class Chain(ModelSpace):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                made(named, number, 0)
                if isinstance(block, Shared)
                else LayerChoice(
                    [made(named, number, c) for c in range(len(block.candidates))],
                    label=f"block{number}",
                )
                for number, block in enumerate(named.space.blocks)
            )

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            state: tuple[Tensor, ...] = ()
            for number, block in enumerate(self.blocks):
                out = block(*state, *(batch[name] for name in named.space.fields(number)))
                state = (
                    tuple(out) if isinstance(out, (tuple, list)) else (out,)
                )  # NNI hands lists on
            loss: Tensor = named.loss(*state, batch["target"])
            return loss

    return Chain()


def _training_module(named: Workload) -> tuple[Any, Any, list[Tensor]]:
    """A Lightning module, a clock around its training, and the losses it sees."""
    from nni.nas.evaluator.pytorch.lightning import LightningModule
    from pytorch_lightning import Callback

    losses: list[Tensor] = []

    class Training(LightningModule):  # type: ignore[misc]
        def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
            loss: Tensor = self.model(batch)
            losses.append(loss.detach())
            return loss

        def validation_step(self, batch: dict[str, Tensor], number: int) -> None:
            return None

        def configure_optimizers(self) -> Any:
            return optimizer_of(named, self.parameters())

    class Clock(Callback):  # type: ignore[misc]
        seconds = start = 0.0

        def on_train_start(self, *ignored: Any) -> None:
            self.start = time.perf_counter()

        def on_train_end(self, *ignored: Any) -> None:
            self.seconds = time.perf_counter() - self.start

    return Training(), Clock(), losses
