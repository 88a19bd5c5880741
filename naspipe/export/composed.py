"""Student blocks combined into one network, which is validated and exported like a subnet."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from naspipe.api.distill import Blockwise, Choices
from naspipe.config.recipe import Recipe
from naspipe.evaluation.evaluation import batch_sums
from naspipe.export.assembly import ModuleChain, assemble
from naspipe.export.assembly import calibrate as take_statistics
from naspipe.export.exporter import Exported, check_place, write_checked
from naspipe.inputs.held_out import judged_by
from naspipe.jobs.losses import Loss
from naspipe.jobs.workload import Batches
from naspipe.machine.determinism import deterministic_torch
from naspipe.search.scores import Scores, scores_of


def compose(found: Blockwise, choices: Choices | None = None) -> ModuleChain:
    """Join the layers of one path per block, with names such as ``student0_block1``."""
    layers = []
    chosen = found.checked(choices)
    for number, (run, own) in enumerate(zip(found.blocks, chosen, strict=True)):
        for layer in assemble(run, own).layers:
            name, label = f"student{number}_{layer.name}", f"{number}/{layer.label}"
            layers.append(replace(layer, name=name, label=label))
    return ModuleChain(tuple(choice for own in chosen for choice in own), tuple(layers))


def validate_blocks(
    found: Blockwise,
    choices: Choices | None,
    held_out: Batches,
    *,
    loss: Loss | None = None,
    calibrate: int = 0,
    validate: int | None = None,
) -> Scores:
    """Score a whole network of student blocks: mean loss, top-1 and top-5 on held-out batches.

    Args:
        found: a finished distillation.
        choices: for each block, one per choice block.
        held_out: (seed, number) -> named tensors, with ``target``.
        loss: called with the last output and the target; cross entropy by default.
        calibrate: number of batches of the distillation's data from which running statistics are
            recomputed through the whole network; 0 to keep the statistics of the blocks.
        validate: number of batches of ``held_out``; 8 by default, or all if there are fewer.

    Raises:
        ConfigError: for input that cannot be used.
    """
    chain = compose(found, choices)
    take_statistics(chain, found.blocks[0], found.data, calibrate)
    return _scores(chain, found, held_out, loss or nn.CrossEntropyLoss(), validate)


def export_blocks(
    found: Blockwise,
    choices: Choices | None,
    directory: str | Path,
    *,
    held_out: Batches | None = None,
    loss: Loss | None = None,
    calibrate: int = 0,
    validate: int | None = None,
    onnx: bool = False,
) -> Exported:
    """Write a network of student blocks as ``model.py``, ``.json`` and ``.safetensors``.

    The files are loaded again, and must give bitwise equal outputs for the first batch. With
    ``held_out`` the whole network is validated as by :func:`validate_blocks`, which defines the
    other arguments.

    Args:
        found: a finished distillation.
        directory: a directory that does not exist yet, or is empty.
        onnx: also write ``model.onnx``, for batches of the shape of the first.

    Raises:
        ConfigError: for input that cannot be used, or a layer that cannot be exported.
    """
    path = Path(directory)
    chosen, first = found.checked(choices), found.blocks[0]
    check_place(path, found.data, onnx)
    chain = compose(found, chosen)
    calibrated = calibrate if take_statistics(chain, first, found.data, calibrate) else 0
    scores = None
    if held_out is not None:
        scores = _scores(chain, found, held_out, loss or nn.CrossEntropyLoss(), validate)
    note = f"Student blocks {text_of(chosen)} of {first.directory.path.parent.name}."
    done = write_checked(
        chain, first, path, note, data=found.data, onnx=onnx, calibrated=calibrated
    )
    return replace(done, scores=scores)


def text_of(choices: Choices) -> str:
    """Return choices in the form ``0,1;2;``."""
    return ";".join(",".join(map(str, own)) for own in choices)


def _scores(
    chain: ModuleChain, found: Blockwise, held_out: Batches, loss: Loss, asked: int | None
) -> Scores:
    held_out, batches = judged_by(found.data, held_out, asked)
    recipe = Recipe(**found.blocks[0].manifest["definition"]["recipe"])
    is_bf16 = recipe.precision == "bf16"
    casts = torch.autocast("cpu", dtype=torch.bfloat16) if is_bf16 else nullcontext()
    total = torch.zeros(5, dtype=torch.float64)
    with deterministic_torch(recipe.threads), torch.no_grad(), casts:
        for number in range(batches):
            batch = held_out(found.seed, number)
            total += batch_sums(loss, chain(batch), batch["target"])
    return scores_of(total.tolist())
