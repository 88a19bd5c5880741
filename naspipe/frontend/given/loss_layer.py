"""The last block of a run whose loss is a module with parameters or buffers of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from naspipe.config.blocks import LOSS, CopyOf, LossBlock
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.frontend.given.plain_chain import modules_digest
from naspipe.frontend.given.run import Run, loss_layer_of
from naspipe.runtime.jobs.losses import is_joined, name_of_loss
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.layers.module_copies import check_hooks_copied, copied


def with_loss_layer(workload: Workload) -> Workload:
    """Return the workload with its loss as a layer at the end of the chain, if it must be one.

    That is a loss module with parameters to train, or with buffers that its forward may change. A
    joined loss is called once for all passes of a step, so it cannot be a layer. The layer of
    another loss, as in the space of a run, is left out.

    Raises:
        ConfigError: if the loss has a parameter or buffer of a module that the run trains a copy
            of, or if the space has a layer called ``loss``.
    """
    loss: Any = workload.loss
    last = workload.space.blocks[-1]
    if isinstance(last, LossBlock):
        if isinstance(last.factory, CopyOf) and last.factory.original is loss:
            return workload
        workload = _with_space(workload, last.before)
    is_layer = workload.is_trained and isinstance(loss, nn.Module) and not is_joined(loss)
    if not is_layer or not any(_state_of(loss)):
        return workload
    space = workload.space
    if LOSS in space.labels:
        raise ConfigError(
            f"loss {name_of_loss(loss)}: expected no layer called {LOSS!r} in {space.name}, as the "
            f"loss has parameters or buffers and becomes a layer of this name, found one; rename it"
        )
    _check_loss_apart(loss, space)
    check_hooks_copied([loss])
    return _with_space(workload, _followed_by(space, loss))


def with_run_loss(run: Run, loss: object) -> Run:
    """Return a run of which the space has the loss layer that the run trained, if it has one."""
    is_there = isinstance(run.space.blocks[-1], LossBlock)
    if is_there or loss_layer_of(run.manifest) is None or not isinstance(loss, nn.Module):
        return run
    return Run(_followed_by(run.space, loss), run.path)


def _with_space(workload: Workload, space: Space) -> Workload:
    found = replace(workload, space=space).redefined()
    return replace(found, definition=replace(found.definition, weights=space.weights))


def _followed_by(space: Space, loss: nn.Module) -> Space:
    digest = hashlib.blake2b(f"{space.weights}/{modules_digest([loss])}".encode(), digest_size=16)
    block = LossBlock(LOSS, CopyOf(loss, copied), before=space)
    return space.followed_by(block, weights=digest.hexdigest())


def _state_of(loss: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters to train, and buffers that a forward may change.

    The buffers of torch's own losses are constants (``weight``, ``pos_weight``), and those of
    norms in evaluation mode are not changed.
    """
    for prefix, part in loss.named_modules():
        is_constant = type(part).__module__ == "torch.nn.modules.loss" or (
            isinstance(part, _NormBase) and not part.training
        )
        trained = {n: each for n, each in part._parameters.items() if each is not None}
        trained = {n: each for n, each in trained.items() if each.requires_grad}
        buffers = {} if is_constant else part._buffers
        for name, tensor in {**trained, **buffers}.items():
            if tensor is not None:
                yield f"{prefix}.{name}".removeprefix("."), tensor


def _check_loss_apart(loss: nn.Module, space: Space) -> None:
    """Refuse a loss with a tensor of a module that the space copies: the copies are trained."""
    owners = {
        tensor.untyped_storage()._cdata: space.label(block, candidate)
        for block, each in enumerate(space.blocks)
        for candidate, factory in enumerate(each.candidates)
        if isinstance(factory, CopyOf) and isinstance(factory.original, nn.Module)
        for tensor in (*factory.original.parameters(), *factory.original.buffers())
    }
    for name, tensor in _state_of(loss):
        if (owner := owners.get(tensor.untyped_storage()._cdata)) is not None:
            raise ConfigError(
                f"loss {name_of_loss(loss)}: expected parameters and buffers of its own, found "
                f"{name}, which belongs to layer {owner}, of which the run trains a copy; compute "
                f"this term in the layer that has the tensor and return it beside the output, or "
                f"freeze it by requires_grad_(False) if it is constant"
            )
