"""One layer of a plain loop: its module, its optimizer, and older versions that are still read.

The rules of layers and optimizers are implemented here again, from docs/reproducibility.md. The
code of the stages is not used, because an error in it would then occur on both sides.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, product
from typing import Any

import torch
from torch import nn

from naspipe.config.blocks import Elastic, LossBlock
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Every, Follows, Frozen, Lag, MomentumUpdate, Rule
from naspipe.config.settings import GivenCode
from naspipe.config.space import AnyBlock
from naspipe.config.user_code import import_attribute
from naspipe.mixed.architecture import Alpha, PairAlpha
from naspipe.verification.records import LayerDigests, NotVerifiable, tensor_digest

_NORM_CLASS = re.compile(r"Norm([123]d)?$")


class PlainOptimizer:
    """A torch optimizer of the weights, and Adam for the architecture parameters."""

    def __init__(self, label: str, module: nn.Module, recipe: Recipe, rule: Rule) -> None:
        trained = [p for p in module.parameters() if p.requires_grad]
        alphas = [p for p in trained if isinstance(p, Alpha)]
        weights = [p for p in trained if not isinstance(p, Alpha)]
        self._parameters = [*weights, *alphas]
        self._clip, self._own_factor = recipe.clip_layer_norm, 1.0
        momentum: float | None = None
        if isinstance(rule, Lag | Every):
            momentum, self._own_factor = rule.momentum, rule.lr
        options = {name: _as_tuple(each) for name, each in recipe.optimizer_options.items()}
        alpha_lr = options.pop("alpha_lr", 1e-3)
        alpha_betas = options.pop("alpha_betas", (0.0, 0.999))
        self._alphas = torch.optim.Adam(alphas, alpha_lr, alpha_betas) if alphas else None
        self._weights: torch.optim.Optimizer | None = None
        self._factors: list[float] = []
        """Factors of the learning rate by group of the weights' optimizer."""
        if not weights:
            return
        make = _optimizer_of(recipe.optimizer)
        numbers = _numbers_of_groups(label, module, recipe)
        groups = []
        for number in sorted(set(map(numbers.__getitem__, weights))):
            group: dict[str, Any] = {"params": [p for p in weights if numbers[p] == number]}
            factor = 1.0
            if number:
                own = recipe.groups[number - 1]
                factor = own.lr_factor
                given = {name: _as_tuple(each) for name, each in own.options.items()}
                group |= _with_momentum(make, {**options, **given}, momentum)
            self._factors.append(factor)
            groups.append(group)
        own_rate = {"lr": recipe.lr} if _takes(make, "lr") else {}
        one_group = len(groups) == 1 and len(groups[0]) == 1
        self._weights = make(
            weights if one_group else groups, **own_rate, **_with_momentum(make, options, momentum)
        )
        if len(self._factors) == 1:  # a user's optimizer may split a single group
            self._factors *= len(self._weights.param_groups)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip the layer's gradient according to the recipe, and step all parameters with one."""
        if self._clip:
            with_gradient = [p for p in self._parameters if p.grad is not None]
            torch.nn.utils.clip_grad_norm_(with_gradient, self._clip)
        if self._weights is not None:
            groups = self._weights.param_groups
            for group, factor in zip(groups, self._factors, strict=True):
                group["lr"] = rate * self._own_factor * factor
            self._weights.step()
        if self._alphas is None:
            return
        alphas = self._alphas.param_groups[0]["params"]
        before = {alpha: alpha.clone() for alpha in alphas}
        self._alphas.step()
        for alpha in alphas:  # the step of a pair must not change other candidates' path weights
            if not isinstance(alpha, PairAlpha) or alpha.grad is None:
                continue
            moved = alpha.grad != 0
            if moved.any():
                offset = before[alpha][moved].logsumexp(0) - alpha[moved].logsumexp(0)
                alpha.copy_(torch.where(moved, alpha + offset, alpha))

    def state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """Return the optimizer state of a parameter; empty before its first step."""
        for optimizer in (self._weights, self._alphas):
            if optimizer is not None and parameter in optimizer.state:
                return dict(optimizer.state[parameter])
        return {}

    def restore(self, parameter: nn.Parameter, key: str, value: Any) -> None:
        """Set an entry of the optimizer state of a parameter.

        As in ``torch.optim``, step counts stay in host memory, and tensors of the parameter's shape
        are on its device.
        """
        owner = self._alphas if isinstance(parameter, Alpha) else self._weights
        assert owner is not None, "the parameter is trained"
        is_tensor = isinstance(value, torch.Tensor) and value.dim() > 0
        owner.state[parameter][key] = value.to(parameter.device) if is_tensor else value

    def momentum_of(self, parameter: nn.Parameter) -> float:
        """Return the momentum or first beta of a parameter's group, or 0 if it has neither."""
        groups = self._weights.param_groups if self._weights is not None else []
        for group in groups:
            if any(each is parameter for each in group["params"]):
                return float(group.get("momentum", group.get("betas", (0.0,))[0]))
        return 0.0


def _numbers_of_groups(label: str, module: nn.Module, recipe: Recipe) -> dict[nn.Parameter, int]:
    """Return the number of each parameter's group, starting at 1; 0 if no group matches."""
    found: dict[nn.Parameter, int] = {}
    for prefix, owner in module.named_modules():
        for key, parameter in owner.named_parameters(recurse=False):
            name = ".".join(part for part in (label, prefix, key) if part)
            matching = (
                number
                for number, group in enumerate(recipe.groups, 1)
                if any(_matches(each, name, parameter, owner) for each in group.match)
            )
            found.setdefault(parameter, next(matching, 0))
    return found


def _matches(pattern: str, name: str, parameter: nn.Parameter, owner: nn.Module) -> bool:
    if pattern == "bias":
        key = name.rpartition(".")[2]
        return key == "bias" or key.startswith("bias_") or key.endswith("_bias")
    if pattern == "norm":
        return _NORM_CLASS.search(type(owner).__name__) is not None
    if pattern == "vector":
        return parameter.dim() < 2
    return fnmatchcase(name, pattern)


def _optimizer_of(name: str) -> Callable[..., Any]:
    if isinstance(name, GivenCode):
        return name.code
    if ":" in name:
        found: Callable[..., Any] = import_attribute(name)
        return found
    return PlainLARS if name == "LARS" else getattr(torch.optim, name)


def _takes(make: Callable[..., Any], option: str) -> bool:
    known = inspect.signature(make).parameters
    return option in known or any(each.kind is each.VAR_KEYWORD for each in known.values())


def _with_momentum(
    make: Callable[..., Any], options: dict[str, Any], momentum: float | None
) -> dict[str, Any]:
    """Return the options with the momentum of the layer's rule, if it has one."""
    known = inspect.signature(make).parameters
    if momentum is None:
        return options
    if "momentum" in known:
        return {**options, "momentum": momentum}
    _, second = options.get("betas", known["betas"].default)
    return {**options, "betas": (momentum, second)}


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class PlainLARS(torch.optim.Optimizer):
    """LARS (You et al. 2017) with a trust coefficient.

    Weight decay and scaling do not apply to parameters of fewer than two dimensions.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        usual = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, usual)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in (each for each in group["params"] if each.grad is not None):
                scale, gradient = 1.0, parameter.grad
                if parameter.dim() > 1:
                    decay = group["weight_decay"]
                    norm, gradient_norm = float(parameter.norm()), float(gradient.norm())
                    if norm > 0 and gradient_norm > 0:
                        scale = group["trust"] * norm / (gradient_norm + decay * norm)
                    gradient = gradient.add(parameter, alpha=decay)
                state = self.state[parameter]
                velocity = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
                velocity.mul_(group["momentum"]).add_(gradient, alpha=group["lr"] * scale)
                parameter.sub_(velocity)


Gradients = dict[str, torch.Tensor]
"""Gradients by parameter name; parameters without a gradient are absent."""

Statistics = list[tuple[torch.Tensor, torch.Tensor] | None]
"""Mean and unbiased batch variance for each norm of one forward; None if the norm was not used."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """The state of a layer after a step, as in a checkpoint."""

    values: Mapping[str, Any]
    """Tensors and numbers by their names in the checkpoint, such as ``param/weight``."""
    step: int
    """The last step that wrote the layer, or -1."""
    older: Sequence[tuple[int, Mapping[str, torch.Tensor]]]
    """Earlier versions that later steps read, oldest first: the step that wrote the version, and
    its tensors by the names of parameters and buffers."""


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class PlainLayer:
    """A module that is trained in place.

    Args:
        label: label of the layer in its space.
        block: block of the space, which defines how an option is computed and the layer's rule.
        module: module of the layer, already on its device.
        recipe: recipe of the run.
        trains: True if the module is in training mode.
    """

    def __init__(
        self, label: str, block: AnyBlock, module: nn.Module, recipe: Recipe, trains: bool
    ) -> None:
        self.label, self.module, self.rule = label, module, block.rule
        block.set_mode(module, trains)
        self._block, self._ema = block, recipe.ema
        if isinstance(self.rule, Frozen | Follows):
            module.requires_grad_(False)
        self.parameters = dict(module.named_parameters())
        self._optimizer: PlainOptimizer | None = None
        if any(each.requires_grad for each in self.parameters.values()):
            self._optimizer = PlainOptimizer(label, module, recipe, self.rule)
        self._averages: dict[str, torch.Tensor] = {}
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}
        self._updates: dict[str, torch.Tensor] = {}
        self._ahead = 0
        is_sliced = isinstance(block, Elastic) and block.step == "slice"
        self._slices = _Slices(block, module) if isinstance(block, Elastic) and is_sliced else None
        self._versions: list[tuple[int, dict[str, torch.Tensor]]] = []
        """Older versions, newest last: the step that wrote the version, and its tensors."""
        if isinstance(self.rule, Lag | Every | Follows):
            self._versions = [(-1, self._version())]

    @torch.no_grad()
    def restore(self, state: LayerState) -> None:
        buffers: set[str] = set()
        for name, value in state.values.items():
            kind, _, own = name.partition("/")
            if kind == "param":
                self.parameters[own].copy_(value)
            elif kind == "buffer":
                buffers.add(own)
                owner, _, key = own.rpartition(".")
                slots = self.module.get_submodule(owner)._buffers
                buffer = slots.get(key)
                if (
                    buffer is not None
                    and 0 not in buffer.stride()
                    and (buffer.dtype, buffer.shape, buffer.stride())
                    == (value.dtype, value.shape, value.stride())
                ):
                    buffer.copy_(value)
                else:
                    slots[key] = value.to(self._device)
            else:
                parameter, _, key = own.rpartition("/")
                self._restore_state(parameter, key, value)
        for name in {name for name, _ in self.module.named_buffers()} - buffers:
            owner, _, key = name.rpartition(".")
            del self.module.get_submodule(owner)._buffers[key]
        if isinstance(self.rule, Lag) and self._updates and not self.rule.over:
            self._ahead = self.rule.subnets
        if self._versions:
            self._versions = [(step, dict(read)) for step, read in state.older]
            self._versions.append((state.step, self._version()))

    @property
    def state(self) -> LayerState:
        """Copy of the layer's current state, as a checkpoint would have it."""
        step = self._versions[-1][0] if self._versions else -1
        return LayerState(copy.deepcopy(dict(self.tensors())), step, self._versions[:-1])

    def end_training(self) -> None:
        """Free everything but the module, because the layer is not trained any more."""
        self._optimizer, self._versions = None, []
        self._averages, self._sums, self._updates = {}, {}, {}

    def _restore_state(self, parameter: str, key: str, value: Any) -> None:
        match key:
            case "naspipe_ema":
                self._averages[parameter] = value.to(self._device)
            case "naspipe_sum":
                self._sums[parameter] = value.to(self._device)
            case "naspipe_count":
                self._counts[parameter] = int(value)
            case "naspipe_update":
                self._updates[parameter] = value.to(self._device)
            case "naspipe_ahead":
                self._ahead = int(value)
            case _:
                assert self._optimizer is not None, "only a layer with an optimizer has state"
                self._optimizer.restore(self.parameters[parameter], key, value)

    @property
    def _device(self) -> torch.device:
        tensors = chain(self.parameters.values(), self.module.buffers())
        return next((each.device for each in tensors), torch.device("cpu"))

    # Forwards

    def call(self, option: int, *tensors: torch.Tensor) -> Any:
        block = self._block
        if isinstance(block, LossBlock):
            return tensors  # the loss is called with them
        if not isinstance(block, Elastic):
            return self.module(*tensors)
        if block.apply is not None:
            return block.apply(self.module, *tensors, **setting_of(block, option))
        return self.module(*tensors, **setting_of(block, option))

    @contextmanager
    def as_read_by(self, step: int) -> Iterator[None]:
        """Context in which the module has the version that a step reads.

        The data of the module's own parameters are replaced, so that hooks and other code that
        reads the parameters also see that version, in the forward and in the backward.
        """
        if not self._versions:
            yield
            return
        while len(self._versions) > 1 and self._versions[1][0] <= last_read(self.rule, step):
            self._versions.pop(0)
        own = {**self.parameters, **dict(self.module.named_buffers())}
        read = self._versions[0][1]
        newest = {name: own[name].data for name in read}
        for name, value in read.items():
            own[name].data = value
        try:
            yield
        finally:
            for name, value in newest.items():
                own[name].data = value

    @contextmanager
    def buffers_lent(self) -> Iterator[None]:
        """Context in which the module has copies of its buffers, which forwards may change."""
        own = [(part, dict(part._buffers)) for part in self.module.modules()]
        lent: dict[int, torch.Tensor | None] = {id(None): None}
        for part, buffers in own:
            for name, buffer in buffers.items():
                if buffer is not None:
                    lent.setdefault(id(buffer), buffer.clone())  # a buffer may be in two modules
                part._buffers[name] = lent[id(buffer)]
        try:
            yield
        finally:
            for part, buffers in own:
                part._buffers.update(buffers)

    def take_gradients(self) -> Gradients:
        found = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        for parameter in self.parameters.values():
            parameter.grad = None
        return found

    # Updates

    @torch.no_grad()
    def write(self, step: int, gradients: Gradients, rate: float, options: set[int]) -> None:
        """Take one optimizer step, or accumulate the gradients for a later one."""
        if self._optimizer is None:
            return
        if isinstance(self.rule, Every):
            for name, gradient in gradients.items():
                if name not in self._sums:
                    self._sums[name] = torch.zeros_like(self.parameters[name])
                self._sums[name].add_(gradient)
                self._counts[name] = self._counts.get(name, 0) + 1
            if (step + 1) % self.rule.steps != 0:
                return
            gradients = {
                name: self._sums[name] / self.rule.steps
                for name, count in self._counts.items()
                if count
            }
            for name in gradients:
                self._sums[name].zero_()
                self._counts[name] = 0
        masks = self._slices.used_by(options) if self._slices else {}
        for name in [name for name, mask in masks.items() if not mask.any()]:
            gradients.pop(name, None)
        for name, gradient in gradients.items():
            self.parameters[name].grad = gradient
        before = {name: self.parameters[name].clone() for name in gradients}
        kept = {
            name: {key: value.clone() for key, value in self._entries_of(name)}
            for name in gradients
            if name in masks
        }
        self._optimizer.step(rate)
        for name in gradients if self._ema else ():
            if name in self._averages:
                self._averages[name].lerp_(self.parameters[name], 1.0 - self._ema)
            else:
                self._averages[name] = self.parameters[name].clone()
        for name, own in kept.items():  # undo the step for entries that no pass used
            for key, value in self._entries_of(name):
                begun = before[name] if key == "naspipe_ema" else torch.zeros_like(value)
                value.copy_(torch.where(masks[name], value, own.get(key, begun)))
            parameter = self.parameters[name]
            parameter.copy_(torch.where(masks[name], parameter, before[name]))
        if isinstance(self.rule, Lag) and self.rule.predicts and self.rule.subnets:
            self._note_updates(step, before)
        for parameter in self.parameters.values():
            parameter.grad = None
        self._keep_version(step)

    def _entries_of(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that have a value for each entry of a parameter, with their keys."""
        assert self._optimizer is not None, "only a layer with an optimizer is stepped"
        parameter = self.parameters[name]
        for key, value in self._optimizer.state_of(parameter).items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape == parameter.shape:
                yield key, value
        if name in self._averages:
            yield "naspipe_ema", self._averages[name]

    def _note_updates(self, step: int, before: Mapping[str, torch.Tensor]) -> None:
        """Record the step's update of each parameter, from which readers predict later weights."""
        for name, parameter in self.parameters.items():
            if name in before or name in self._updates:
                self._updates[name] = parameter - before.get(name, parameter)
        assert isinstance(self.rule, Lag), "no other rule predicts"
        reader = step + 1
        while reader - 1 - lag_of(self.rule, reader) < step:
            reader += 1
        self._ahead = reader - 1 - step

    @torch.no_grad()
    def follow(self, step: int, source: PlainLayer, update: MomentumUpdate, tau: float) -> None:
        """Move towards the student's layer, which has already taken its step."""
        for name, parameter in self.parameters.items():
            parameter.lerp_(source.parameters[name], 1.0 - tau)
        if update.buffers != "own":
            theirs = dict(source.module.named_buffers())
            for name, buffer in self.module.named_buffers():
                if update.buffers == "averaged" and buffer.is_floating_point():
                    buffer.lerp_(theirs[name], 1.0 - tau)
                else:
                    buffer.copy_(theirs[name])
        self._keep_version(step)

    def _keep_version(self, step: int) -> None:
        if self._versions:
            self._versions.append((step, self._version()))

    @torch.no_grad()
    def _version(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the current version that later steps read."""
        found = {}
        for name, parameter in self.parameters.items():
            found[name] = parameter.detach().clone()
            if self._ahead and name in self._updates and self._optimizer is not None:
                momentum = self._optimizer.momentum_of(parameter)
                far = sum(momentum**number for number in range(1, self._ahead + 1))
                found[name] = parameter + self._updates[name] * far
        if isinstance(self.rule, Follows) and not self.module.training:
            found |= {name: each.clone() for name, each in self.module.named_buffers()}
        return found

    # Batch normalisation

    @contextmanager
    def statistics_aside(self) -> Iterator[Statistics]:
        """Context that collects batch statistics and keeps the running statistics unchanged.

        The running statistics of a norm with momentum 1 are exactly those of the batch.
        """
        kept = []
        for norm in norms_of(self.module):
            assert norm.num_batches_tracked is not None, "a norm that tracks statistics counts"
            count = int(norm.num_batches_tracked)
            kept.append((norm, norm.running_mean, norm.running_var, norm.momentum, count))
            norm.running_mean = torch.zeros_like(kept[-1][1])
            norm.running_var = torch.zeros_like(kept[-1][2])
            norm.momentum = 1.0
        found: Statistics = []
        yield found
        for norm, mean, variance, momentum, count in kept:
            is_used = int(norm.num_batches_tracked) > count
            found.append((norm.running_mean, norm.running_var) if is_used else None)
            norm.running_mean, norm.running_var, norm.momentum = mean, variance, momentum
            norm.num_batches_tracked.fill_(count)

    @torch.no_grad()
    def fold(self, statistics: Statistics) -> None:
        """Update the running statistics with those of one pass."""
        for norm, pair in zip(norms_of(self.module), statistics, strict=True):
            if pair is not None:
                norm.num_batches_tracked += 1
                momentum = norm.momentum
                if momentum is None:
                    momentum = 1 / int(norm.num_batches_tracked)
                norm.running_mean.mul_(1 - momentum).add_(pair[0], alpha=momentum)
                norm.running_var.mul_(1 - momentum).add_(pair[1], alpha=momentum)

    # Results

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield every tensor and value of the layer, by its name in a checkpoint."""
        for name, parameter in self.parameters.items():
            yield f"param/{name}", parameter.detach()
        for name, buffer in self.module.named_buffers():
            yield f"buffer/{name}", buffer.detach()
        for name, parameter in self.parameters.items():
            state = self._optimizer.state_of(parameter) if self._optimizer else {}
            if name in self._averages:
                state["naspipe_ema"] = self._averages[name]
            if name in self._sums:
                state["naspipe_sum"] = self._sums[name]
                state["naspipe_count"] = self._counts[name]
            if name in self._updates:
                state["naspipe_update"] = self._updates[name]
                if isinstance(self.rule, Lag) and self.rule.over:
                    state["naspipe_ahead"] = self._ahead
            for key, value in state.items():
                yield f"optimizer/{name}/{key}", value

    def digests(self) -> LayerDigests:
        return {name: tensor_digest(value) for name, value in self.tensors()}


def setting_of(block: Elastic, option: int) -> dict[str, Any]:
    values = list(product(*block.settings.values()))[option]
    return dict(zip(block.settings, values, strict=True))


def lag_of(rule: Lag, step: int) -> int:
    """Return K, by how many steps the weights that a step reads are stale, including its ramp."""
    return rule.subnets * step // rule.over if step < rule.over else rule.subnets


def last_read(rule: Rule, step: int) -> int:
    """Return the newest step whose update a step reads; negative for none."""
    match rule:
        case Lag():
            return step - 1 - lag_of(rule, step)
        case Every(steps):
            return (step // steps - 1) * steps - 1
        case Follows(_, _, steps):
            return step - 1 - steps
    return step - 1


def norms_of(module: nn.Module) -> list[Any]:
    """Return the norms whose running statistics a forward changes."""
    return [
        each
        for each in module.modules()
        if isinstance(each, NORMS) and each.track_running_stats and each.training
    ]


class _Slices:
    """The entries of an elastic layer's parameters that the cut of each option uses.

    They are found by cutting a copy whose entries are numbered.
    """

    def __init__(self, block: Elastic, module: nn.Module) -> None:
        self._block = block
        self._numbered = copy.deepcopy(module).cpu().double()
        self._sizes = [each.numel() for each in self._numbered.parameters()]
        if sum(self._sizes) >= 2**24:
            raise NotVerifiable(
                f'because layer {block.name} has step="slice" and {sum(self._sizes):,} entries; '
                f"the plain loop tells 2**24 apart"
            )
        first = 1
        with torch.no_grad():
            for parameter in self._numbered.parameters():
                numbers = torch.arange(first, first + parameter.numel()).view(parameter.shape)
                parameter.copy_(numbers)
                first += parameter.numel()
        self._device = next(module.parameters()).device if self._sizes else torch.device("cpu")

    def used_by(self, options: set[int]) -> dict[str, torch.Tensor]:
        """Return a mask for each parameter of the entries that at least one of the options uses."""
        used = torch.zeros(sum(self._sizes) + 1, dtype=torch.bool)
        block = self._block
        for option in options:
            setting = setting_of(block, option)
            module: Any = self._numbered
            part = block.cut(module, **setting) if block.cut else module.cut(**setting)
            for parameter in part.parameters():
                used[parameter.detach().flatten().long()] = True
        parts = torch.split(used[1:], self._sizes)
        named = self._numbered.named_parameters()
        return {
            name: mask.view(parameter.shape).to(self._device)
            for (name, parameter), mask in zip(named, parts, strict=True)
        }
