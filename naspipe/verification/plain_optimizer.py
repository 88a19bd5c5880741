"""The optimizer of one layer in a plain loop, made from the recipe."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from naspipe.config.recipe import Recipe
from naspipe.config.rules import Every, Lag, Rule
from naspipe.config.settings import GivenCode
from naspipe.config.user_code import import_attribute
from naspipe.mixed.alphas import Alpha, PairAlpha

_NORM_CLASS = re.compile(r"Norm([123]d)?$")


class PlainOptimizer:
    """A torch optimizer of the weights, and Adam for the architecture parameters.

    Args:
        label: of the layer, such as ``3.1`` or ``head``.
        module: of the layer.
        recipe: names the optimizer, its options and the parameter groups.
        rule: of the layer, which may have a momentum and a learning-rate factor of its own.
    """

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
        """By group of the weights' optimizer."""
        if weights:
            numbers = _numbers_of_groups(label, module, recipe)
            self._make(weights, numbers, recipe, options, momentum)

    def _make(
        self, weights: list[nn.Parameter], numbers: dict[nn.Parameter, int], recipe: Recipe,
        options: dict[str, Any], momentum: float | None,
    ) -> None:  # fmt: skip
        make = _optimizer_of(recipe.optimizer)
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
        if len(self._factors) == 1:  # a user's optimizer may make several groups of the only one
            self._factors *= len(self._weights.param_groups)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip the layer's gradient as the recipe says and step every parameter that has one."""
        if self._clip:
            with_gradient = [p for p in self._parameters if p.grad is not None]
            torch.nn.utils.clip_grad_norm_(with_gradient, self._clip)
        if self._weights is not None:
            groups = self._weights.param_groups
            for group, factor in zip(groups, self._factors, strict=True):
                group["lr"] = rate * self._own_factor * factor
            self._weights.step()
        if self._alphas is not None:
            self._step_alphas(self._alphas)

    def _step_alphas(self, optimizer: torch.optim.Optimizer) -> None:
        """After a pair's step, the path weights of all other candidates are put back."""
        alphas = optimizer.param_groups[0]["params"]
        before = {alpha: alpha.clone() for alpha in alphas}
        optimizer.step()
        for alpha in alphas:
            if not isinstance(alpha, PairAlpha) or alpha.grad is None:
                continue
            moved = alpha.grad != 0
            if moved.any():
                offset = before[alpha][moved].logsumexp(0) - alpha[moved].logsumexp(0)
                alpha.copy_(torch.where(moved, alpha + offset, alpha))

    def state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """What the optimizer keeps for a parameter; empty before its first step."""
        for optimizer in (self._weights, self._alphas):
            if optimizer is not None and parameter in optimizer.state:
                return dict(optimizer.state[parameter])
        return {}

    def restore(self, parameter: nn.Parameter, key: str, value: Any) -> None:
        """Set something that the optimizer keeps for a parameter.

        As in ``torch.optim``, numbers of steps stay in host memory and tensors of the parameter's
        shape are on its device.
        """
        owner = self._alphas if isinstance(parameter, Alpha) else self._weights
        assert owner is not None, "the parameter is trained"
        is_tensor = isinstance(value, torch.Tensor) and value.dim() > 0
        owner.state[parameter][key] = value.to(parameter.device) if is_tensor else value

    def momentum_of(self, parameter: nn.Parameter) -> float:
        """The momentum of a parameter's group, the first of its betas, or 0."""
        groups = self._weights.param_groups if self._weights is not None else []
        for group in groups:
            if any(each is parameter for each in group["params"]):
                return float(group.get("momentum", group.get("betas", (0.0,))[0]))
        return 0.0


def _numbers_of_groups(label: str, module: nn.Module, recipe: Recipe) -> dict[nn.Parameter, int]:
    """The number of each parameter's group, counted from 1; 0 if no group matches it."""
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
    """The options with the momentum of the layer's rule, if it has one."""
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
    """LARS (You et al. 2017); parameters of fewer than two dimensions have no decay and no scale.

    Args:
        params: parameters or groups.
        lr: learning rate.
        momentum: of the velocity.
        weight_decay: of parameters with two dimensions or more.
        trust: the trust coefficient.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 0.1, momentum: float = 0.9,
        weight_decay: float = 0.0, trust: float = 0.001,
    ) -> None:  # fmt: skip
        usual = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, usual)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
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
