"""The blocks that compute a run's loss at the end of a network, and networks as spaces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from naspipe.config.blocks import LOSS, Block, CopyOf, LossBlock, Shared
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.inputs.run import Run, loss_layer_of
from naspipe.jobs.losses import is_joined, name_of_loss
from naspipe.jobs.workload import Workload
from naspipe.machine.staging import tensor_bytes
from naspipe.worker.layers.held_tensors import check_hooks_copied, copied
from naspipe.worker.layers.layer_store import shared, tensors_of

END = "joined"
"""Label of the block that joins the outputs of all passes of a step without changing them."""


def joined_end() -> Shared:
    """Return a new block that joins the outputs of all passes of a step."""
    return Shared(END, nn.Identity)


def network_length(space: Space) -> int:
    """Return the number of blocks of the network, without a block for the loss."""
    is_end = space.labels[-1] == END or isinstance(space.blocks[-1], LossBlock)
    return len(space) - is_end


def chain(modules: Iterable[nn.Module], *, name: str = "network") -> Space:
    """Return a ``torch.nn.Sequential``, or modules in order, as a space with one subnet.

    It trains like any space: on stages and groups, with any budget, with the bits of the plain
    loop. The layers start as copies of the modules, with their present weights and the hooks of
    their parameters. A digest of the weights is part of the run's definition.

    Args:
        modules: each takes the output of the previous one: a tensor, or a tuple of tensors. The
            first takes the batch field ``input``; the output of the last one goes to the loss.
        name: of the space.

    Raises:
        ConfigError: if there are no modules, if an item is not a module, or if modules share a
            tensor, because copies would not.
    """
    parts = _parts(modules)
    _check_parts_apart(parts)
    check_hooks_copied(parts)
    return _copied(parts, name)


def teacher_chain(modules: Iterable[nn.Module]) -> Space:
    """Return the chain of a network that is not trained, so that its modules may share tensors."""
    return _copied(_parts(modules), "teacher")


def _copied(parts: Sequence[nn.Module], name: str) -> Space:
    blocks = [Block([CopyOf(part, copied)]) for part in parts]
    return Space(name, blocks, weights=modules_digest(parts))


def _parts(modules: Iterable[nn.Module]) -> list[nn.Module]:
    if isinstance(modules, nn.Module) and not isinstance(modules, nn.Sequential | nn.ModuleList):
        raise ConfigError(
            f"chain: expected a Sequential or a list of modules, found a {type(modules).__name__}; "
            f"give its parts in their order"
        )
    parts = list(modules)
    if not parts:
        raise ConfigError("chain: expected one module or more, found none")
    for position, part in enumerate(parts):
        if not isinstance(part, nn.Module):
            raise ConfigError(
                f"chain: expected modules, found a {type(part).__name__} at position {position}"
            )
    return parts


def _check_parts_apart(parts: Sequence[nn.Module]) -> None:
    owners: dict[int, int] = {}
    for position, part in enumerate(parts):
        for what, tensor in tensors_of(part):
            owner = owners.setdefault(tensor.untyped_storage()._cdata, position)
            if owner != position:
                raise shared(what, f"{owner}.0", f"{position}.0")


def modules_digest(modules: Iterable[nn.Module]) -> str:
    """Return a digest of every parameter and buffer of modules in order, by position and name."""
    found = hashlib.blake2b(digest_size=16)
    for position, module in enumerate(modules):
        for name, value in module.state_dict().items():
            if not isinstance(value, torch.Tensor):
                continue
            found.update(f"{position}/{name}/{value.dtype}/{tuple(value.shape)}\0".encode())
            found.update(tensor_bytes(value.detach().cpu()).numpy().data)
    return found.hexdigest()


def with_loss_layer(workload: Workload) -> Workload:
    """Return the workload with its loss as a layer at the end of the chain, if necessary.

    It is necessary for a loss module with trainable parameters, or with buffers that its forward
    may change. A joined loss is called once for all passes of a step, so it cannot be a layer. The
    layer of another loss, as in the space of a run, is removed.

    Raises:
        ConfigError: if the loss has a parameter or buffer of a module that the run trains as a
            copy, or if the space has a layer called ``loss``.
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
    """Return the run with the loss layer that it trained in its space, if any."""
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
    """Yield trainable parameters, and buffers that a forward may change.

    The buffers of torch's own losses are constants (``weight``, ``pos_weight``), and norms in
    evaluation mode do not change theirs.
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
    """Reject a loss with a tensor of a module that the space copies: the copies are trained."""
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
