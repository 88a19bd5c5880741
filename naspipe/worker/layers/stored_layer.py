"""A layer on a stage: its module, version, optimizer, and older versions that are still read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError, InvariantError, TransportError
from naspipe.config.ids import INITIAL, SequenceId, Version
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Follows, Frozen, MomentumUpdate, OwnStep, Rule, own_step
from naspipe.machine.device_waits import Wait, count, on_host
from naspipe.machine.staging import tensor_bytes
from naspipe.wire.messages import ReceivedTensor
from naspipe.worker.layers.bound_layer import Apply, BoundLayer, Gradients
from naspipe.worker.layers.joint_steps import JointSteps
from naspipe.worker.layers.kept_state import drop_buffers, replace_buffer, slot_of
from naspipe.worker.layers.optimizers import grouping, make_optimizer
from naspipe.worker.layers.own_steps import READ_STATES, ahead, is_moved, take_step
from naspipe.worker.layers.used_entries import UsedEntries


class StoredLayer:
    """A layer: module, newest version, optimizer state, and older versions that are still read.

    If a layer is written while older versions are read (``keeps_versions``), its readers get
    immutable copies, because an in-place step would change tensors that a pending backward needs.
    See :meth:`BoundLayer.in_place`.
    """

    def __init__(
        self,
        label: str,
        rule: Rule,
        module: nn.Module,
        recipe: Recipe,
        keeps_versions: bool = False,
        own: OwnStep | None = None,
        apply: Apply | None = None,
        used: UsedEntries | None = None,
    ) -> None:
        self.label = label
        self.at_hand: Callable[[], None] = lambda: None
        self.call: Callable[..., Any] = module if apply is None else partial(apply, module)
        """The forward with the newest version; that of an elastic layer also takes settings."""
        self.module = module
        self.version = INITIAL
        self._keeps_versions = keeps_versions
        self._is_called = False
        self.own_step = own_step(rule) if own is None else own
        self.parameters = dict(module.named_parameters())
        self.parameter_bytes = sum(each.nbytes for each in self.parameters.values())
        if isinstance(rule, Frozen | Follows):
            module.requires_grad_(False)
        self._reads_buffers = isinstance(rule, Follows) and not module.training
        trained = [p for p in self.parameters.values() if p.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = None
        if trained:
            group_of = grouping(label, module, recipe.groups)
            self.optimizer = make_optimizer(recipe, trained, self.own_step, group_of)
        self._used = used
        """The entries that a step changes; None for all."""
        self.is_sliced = used is not None
        self._copies: dict[Version, dict[str, torch.Tensor]] = {}
        self._buffers: list[tuple[str, ReceivedTensor]] = []
        """Buffers as forwards on another stage left them, for the next forward on this stage."""

    def bind(self, version: Version) -> BoundLayer:
        """Return the layer at one version."""
        if self._buffers:
            self._set_buffers(self._buffers)
            self._buffers = []
        is_first, self._is_called = not self._is_called, True
        if self._keeps_versions:
            values = []
            for name, value in self._copy(version).items():
                own = self.parameters.get(name)
                # Otherwise it is a buffer of a layer whose readers have their own copies.
                tensor = self.module.get_buffer(name) if own is None else own
                values.append((tensor, value))
            return BoundLayer(self.module, self.call, self.parameters, is_first, values)
        if version != self.version:
            raise InvariantError(
                f"layer {self.label}: version {version} was asked for, found {self.version}"
            )
        return BoundLayer(self.module, self.call, self.parameters, is_first)

    def write(
        self,
        gradients: Gradients,
        version: SequenceId,
        base: Version,
        keeps_base: bool,
        step: int,
        lr: float,
        options: frozenset[int] = frozenset(),
        joint: JointSteps | None = None,
    ) -> None:
        """Take optimizer step number ``step`` on top of ``base``.

        Parameters without a gradient are not changed. ``lr`` is the recipe's rate, ``options`` are
        those with which the passes used the layer, and ``joint`` may execute the step later,
        together with those of other layers.
        """
        self.advance(version, base, keeps_base)
        if self.optimizer is not None:
            used = {} if self._used is None else self._used.among(gradients, options)
            for name, gradient in gradients.items():
                self.parameters[name].grad = gradient
            if joint and not used and joint.takes(self.optimizer, self.own_step, lr):
                return
            entries = {self.parameters[name]: mask for name, mask in used.items()}
            take_step(self.optimizer, self.own_step, step, lr, entries)
            for name in gradients:
                self.parameters[name].grad = None

    def advance(self, version: SequenceId, base: Version, keeps_base: bool) -> None:
        """Advance to the version after ``base`` without changing the parameters."""
        if self.version != base:
            what = f"WRITE {version} was to follow version {base}"
            raise InvariantError(f"layer {self.label}: {what}, found {self.version}")
        if keeps_base:
            self._copy(base)
        else:
            self.drop(base)
        self.version = Version(version)

    def copies(self, versions: Iterable[Version]) -> Iterator[tuple[Version, str, torch.Tensor]]:
        """Yield version, parameter name and value of the copies of older versions."""
        for version in versions:
            for name, parameter in self._copy(version).items():
                yield version, name, parameter

    def restore(self, version: Version, copies: Mapping[Version, Gradients]) -> None:
        self.version = version
        for older, parameters in copies.items():
            self._copies[older] = dict(parameters)

    def move(self, device: torch.device) -> None:
        count(Wait.LAYER)
        self.module.to(device)
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        for state in states:
            for name, value in state.items():
                state[name] = value.to(device) if is_moved(value) else value
        self.move_copies(device)

    def move_copies(self, device: torch.device) -> None:
        for copy in self._copies.values():
            count(Wait.LAYER)
            for name, value in copy.items():
                copy[name] = value.to(device)

    def drop(self, version: Version) -> None:
        self._copies.pop(version, None)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield everything that an update may change: parameters, buffers, optimizer state."""
        self.at_hand()
        for name, parameter in self.parameters.items():
            yield f"param/{name}", parameter.detach()
        for name, buffer in self.module.named_buffers():
            yield f"buffer/{name}", buffer
        if self.optimizer is not None:
            for name, parameter in self.parameters.items():
                state = self.optimizer.state.get(parameter, {})
                for key in sorted(state):
                    yield f"optimizer/{name}/{key}", state[key]

    def hand_over(self) -> list[tuple[str, Any]]:
        """Return all tensors and values, whose memory does not change until they are sent."""
        return list(self.tensors())

    def copied(self, *kinds: str, lends: bool = False) -> list[tuple[str, Any]]:
        """Return tensors and values whose names begin with ``kinds``, for stages that only read.

        Parameters are accompanied by the optimizer state from which readers predict them. With
        ``lends`` the memory is shared, except that of buffers, which the next forward on this stage
        may change. The next update waits for the gradients of the receivers.
        """
        is_read = tuple(f"/{key}" for key in READ_STATES) if "param/" in kinds else ()
        found = []
        for name, value in self.tensors():
            if name.startswith(kinds) or name.endswith(is_read):
                is_lent = lends and not name.startswith("buffer/")
                is_copied = isinstance(value, torch.Tensor) and not is_lent
                found.append((name, value.clone() if is_copied else value))
        return found

    def take_buffers(self, state: Iterable[tuple[str, ReceivedTensor]]) -> None:
        """Store buffers as forwards on another stage left them, for the next forward on this stage.

        They are not set earlier, because checkpoints need the state of the newest version, and the
        layer may be in a copy between host and device.
        """
        self._buffers = list(state)
        for name, _ in self._buffers:
            self._slot(name)

    def _slot(self, name: str) -> tuple[nn.Module, str]:
        """Return the owner and key of a buffer by its name in a state; it need not exist."""
        kind, _, own = name.partition("/")
        with suppress(KeyError):
            if kind == "buffer":
                return slot_of(self.module, own)
        raise TransportError(f"layer {self.label}: it has no tensor {name}")

    def _set_buffers(self, state: Sequence[tuple[str, ReceivedTensor]]) -> None:
        """Take over all buffers of another stage, with their shapes on that stage."""
        for name, received in state:
            owner, key = self._slot(name)
            buffer = owner._buffers.get(key)
            if buffer is not None and received.fits(buffer):
                received.copy_to(buffer)
            else:
                if buffer is None:
                    tensors = chain(self.parameters.values(), self.module.buffers())
                    device = next((each.device for each in tensors), torch.device("cpu"))
                else:
                    device = buffer.device
                value = received.value().to(device)
                replace_buffer(self.module, name.removeprefix("buffer/"), value)
        drop_buffers(self.module, {name.removeprefix("buffer/") for name, _ in state})

    def take_over(self, version: Version, state: Iterable[tuple[str, ReceivedTensor]]) -> None:
        """Take the state that another stage handed over."""
        if version <= self.version:
            raise InvariantError(
                f"layer {self.label}: version {version} arrived, found version {self.version}"
            )
        here, state = dict(self.tensors()), list(state)
        if buffers := [each for each in state if each[0].startswith("buffer/")]:
            self._set_buffers(buffers)
        for name, received in state:
            if name.startswith("buffer/"):
                continue
            target = here.get(name)
            if isinstance(target, torch.Tensor):
                received.copy_to(target)
                continue
            kind, parameter, key = name.split("/", 2)
            if kind != "optimizer" or parameter not in self.parameters or self.optimizer is None:
                raise TransportError(f"layer {self.label}: it has no tensor {name}")
            owner, value = self.parameters[parameter], received.value()
            # As in torch.optim, step counts are in host memory and the rest on the parameter's
            # device.
            self.optimizer.state[owner][key] = value.to(owner.device) if is_moved(value) else value
        self.version = version

    def digest(self) -> str:
        """Return a hash of the layer's bytes after the last update."""
        digest = hashlib.blake2b(digest_size=8)
        for name, value in self.tensors():
            digest.update(name.encode())
            if isinstance(value, torch.Tensor):
                digest.update(tensor_bytes(on_host(value, Wait.DIGEST)).numpy().data)
            else:
                digest.update(repr(value).encode())
        return digest.hexdigest()

    def tensor_digests(self) -> dict[str, str]:
        """Return digests of dtype, shape and bytes of tensors, and of the text of other values.

        :mod:`naspipe.verification` compares them with those of a plain loop.
        """
        found = {}
        for name, value in self.tensors():
            digest = hashlib.blake2b(digest_size=8)
            if isinstance(value, torch.Tensor):
                there = on_host(value, Wait.DIGEST)
                digest.update(f"{there.dtype}{tuple(there.shape)}".encode())
                digest.update(tensor_bytes(there).numpy().data)
            else:
                digest.update(repr(value).encode())
            found[name] = digest.hexdigest()
        return found

    def _copy(self, version: Version) -> dict[str, torch.Tensor]:
        copy = self._copies.get(version)
        if copy is None:
            self.at_hand()
            if version != self.version:
                raise InvariantError(
                    f"layer {self.label}: version {version} was asked for, found {self.version} "
                    f"and copies of {sorted(self._copies)}"
                )
            copy = {
                name: ahead(parameter, self.optimizer, self.own_step)
                for name, parameter in self.parameters.items()
            }
            if self._reads_buffers:
                buffers = self.module.named_buffers()
                copy |= {name: buffer.clone() for name, buffer in buffers}
            self._copies[version] = copy
        return copy


@torch.no_grad()
def follow(layer: StoredLayer, source: StoredLayer, update: MomentumUpdate, tau: float) -> None:
    """Move a teacher's layer in place towards its source in the student, which has been stepped.

    ``update`` determines how buffers are updated; ``tau`` is the fraction of the layer that is
    kept.
    """
    source.at_hand()
    for name, parameter in layer.parameters.items():
        parameter.lerp_(source.parameters[name].to(parameter.device), 1.0 - tau)
    if update.buffers == "own":
        return
    sources = dict(source.module.named_buffers())
    for name, buffer in layer.module.named_buffers():
        value = sources[name].to(buffer.device)
        if update.buffers == "averaged" and buffer.is_floating_point():
            buffer.lerp_(value, 1.0 - tau)
        else:
            buffer.copy_(value)


def check_pair(layer: StoredLayer, source: StoredLayer) -> None:
    """Raise ConfigError unless a layer and its source have the same parameters and buffers."""
    mine, theirs = (
        {
            name: f"{tuple(tensor.shape)} of {tensor.dtype}"
            for name, tensor in (*each.parameters.items(), *each.module.named_buffers())
        }
        for each in (layer, source)
    )
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            raise ConfigError(
                f"layer {layer.label} of the teacher: expected {name} as the student has it, "
                f"{theirs.get(name, 'nothing')}, found {mine.get(name, 'nothing')}"
            )
