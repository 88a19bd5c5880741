"""Scores of subnets without training: NASWOT and SynFlow, with the initial weights of layers.

The layers are ordinary modules in one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.evaluation.calibration import Norm, find_norms, fresh_statistics
from naspipe.machine.determinism import block_seed, deterministic_torch, seed_draws
from naspipe.machine.forking import done_fit
from naspipe.worker.layers.layer_store import LayerStore

Tensors = tuple[torch.Tensor, ...]

Around = Callable[[str, nn.Module, Callable[[], object]], AbstractContextManager[object]]


def _bare(label: str, module: nn.Module, call: Callable[[], object]) -> nullcontext[None]:
    return nullcontext()


class FirstLayers:
    """The layers of a space as made by a run with a given seed, each made once.

    They have neither the trained weights of the run nor the weights that it was initialized from.

    Args:
        space: space of the layers.
        seed: seed of the run, from which each layer's seed is derived.
        prepare: called with each new module, which it may change.
        way: description of the computation in messages, such as ``in float64``.
    """

    def __init__(
        self, space: Space, seed: int, prepare: Callable[[nn.Module], object], way: str
    ) -> None:
        self._space, self._seed, self._way = space, seed, way
        self._prepare = prepare
        self._store = LayerStore(space, seed, Recipe(), trains=False)
        self._prepared: set[LayerId] = set()

    def modules(self, choices: Sequence[int]) -> list[nn.Module]:
        return [self._module(*place) for place in enumerate(self._space.chain(choices))]

    def fields(self, choices: Sequence[int]) -> tuple[str, ...]:
        """Return the distinct batch fields that a subnet's layers use."""
        blocks = range(len(self._space.chain(choices)))
        return tuple(dict.fromkeys(name for block in blocks for name in self._space.fields(block)))

    def forward(
        self, choices: Sequence[int], batch: Mapping[str, torch.Tensor], around: Around = _bare
    ) -> Tensors:
        """Compute the outputs of a subnet for a batch; draws are keyed by the block.

        Args:
            choices: choices of the subnet.
            batch: input of its layers.
            around: makes the context in which a layer is called, from its label, its module, and a
                function that calls the module in its current mode.

        Raises:
            ConfigError: if a layer fails, or returns anything but tensors.
        """
        state: Tensors = ()
        for block, option in enumerate(self._space.chain(choices)):
            module = self._module(block, option)
            fields = [batch[name].clone() for name in self._space.fields(block)]
            label = self._space.option_label(block, option)
            expected = f"layer {label}: expected a layer that computes tensors {self._way}, found"
            forward = self._space.blocks[block].forward_of(module, option)
            call = partial(self._call, forward, block, (*state, *fields), expected)
            with around(label, module, call):
                result = call()
            state = result if isinstance(result, tuple) else (result,)
            if not all(isinstance(each, torch.Tensor) for each in state):
                raise ConfigError(f"{expected} {type(result).__name__}")
        return state

    def _call(self, forward: Callable[..., Any], block: int, inputs: Tensors, expected: str) -> Any:
        seed_draws(block_seed(self._seed, 0, block))
        with users_code(expected):
            return forward(*(each.view_as(each) for each in inputs))

    def _module(self, block: int, option: int) -> nn.Module:
        candidate = self._space.blocks[block].candidate(option)
        layer = LayerId(FIRST_STREAM, block, candidate)
        label = self._space.label(block, candidate)
        with users_code(f"layer {label}: expected a torch.nn.Module, found"):
            module = self._store[layer].module
        if layer not in self._prepared:
            self._prepare(module)
            self._prepared.add(layer)
        return module


_ATEN = torch.ops.aten

_RECTIFIERS = {_ATEN.relu, _ATEN.relu_, _ATEN.leaky_relu, _ATEN.leaky_relu_}
_CLIPPED = {_ATEN.hardtanh, _ATEN.hardtanh_}
"""ReLU6, if the minimum is 0."""


class Naswot:
    """Scores subnets by log \\|K\\|; higher is better.

    Each rectified unit contributes one bit to a sample's code, which is 1 if its input is above 0.
    K has a row and a column for each sample, and counts the bits in which two samples agree. Units
    of ReLU modules and functions count and, as an extension, those of ReLU6 and leaky ReLU.

    Args:
        space: space of the subnets.
        seed: seed of the run, whose initial weights they have.
        threads: number of threads for the computation.
        batch: batch of B samples, in the first dimension of each field.
    """

    def __init__(
        self, space: Space, seed: int, threads: int, batch: Mapping[str, torch.Tensor]
    ) -> None:
        self._layers = FirstLayers(space, seed, nn.Module.eval, "of the batch")
        self._norms: dict[str, Sequence[Norm]] = {}
        """Norms by the label of a layer with its option."""
        self._threads = threads
        self._batch = batch

    def __call__(self, choices: Sequence[int]) -> float:
        """Return the score of a subnet; -inf if no units distinguish all samples.

        Raises:
            ConfigError: if a layer fails, or rectifies a tensor that does not have B samples.
        """
        kernel, units = self._kernel(choices)
        with deterministic_torch(self._threads):
            return log_determinant(kernel, units)

    def units(self, choices: Sequence[int]) -> int:
        return self._kernel(choices)[1]

    def _kernel(self, choices: Sequence[int]) -> tuple[torch.Tensor, int]:
        samples = self._batch[self._layers.fields(choices)[0]].shape[0]
        with deterministic_torch(self._threads), torch.no_grad():
            self._layers.forward(choices, self._batch, self._finding_norms)
            with _Codes(samples) as codes:
                self._layers.forward(choices, self._batch, self._with_batch_statistics)
        return codes.kernel, codes.units

    @contextmanager
    def _finding_norms(
        self, label: str, module: nn.Module, call: Callable[[], object]
    ) -> Iterator[None]:
        if label not in self._norms:
            self._norms[label] = find_norms(label, module, call, "use another score")
        yield

    def _with_batch_statistics(
        self, label: str, module: nn.Module, call: Callable[[], object]
    ) -> AbstractContextManager[object]:
        """Context in which norms use batch statistics; other modules are in evaluation mode."""
        return fresh_statistics(label, module, self._norms[label])


def log_determinant(kernel: torch.Tensor, units: int) -> float:
    """Return log \\|K\\| of a (B, B) kernel of codes with integer values; -inf if it is singular.

    It is singular if two samples have the same code, or if there are fewer units than B - 1,
    because it is the sum of a matrix of that rank and one of rank 1.
    """
    samples = len(kernel)
    others = kernel - units * torch.eye(samples, dtype=kernel.dtype)
    if units + 1 < samples or bool((others == units).any()):
        return -math.inf
    sign, found = torch.linalg.slogdet(kernel)
    return float(found) if sign > 0 else -math.inf


class _Codes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, for each pair of samples, the units with the same bit."""

    def __init__(self, samples: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel = torch.zeros(samples, samples, dtype=torch.float64)
        self.units = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if _rectifies(func.overloadpacket, args, given):
            inputs, samples = args[0], len(self.kernel)
            if inputs.dim() < 1 or inputs.shape[0] != samples:
                raise ConfigError(
                    f"score naswot: expected layers that rectify {samples} samples in the first "
                    f"dimension, found a tensor of shape {tuple(inputs.shape)}; use another score"
                )
            codes = (inputs > 0).reshape(samples, -1).double()
            self.units += codes.shape[1]
            self.kernel += codes @ codes.T + (1 - codes) @ (1 - codes).T
        return func(*args, **given)


def _rectifies(operation: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    if operation in _CLIPPED:
        least = args[1] if len(args) > 1 else given.get("min_val", -1)
        return float(least) == 0.0
    return operation in _RECTIFIERS


_NAMES = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")

_NORMS = {getattr(where, name) for where in (functional, torch) for name in _NAMES}
"""The functions that compute norms, including those that modules call."""


class Synflow:
    """Scores subnets by the logarithm of their synaptic flow; higher is better.

    Every weight and bias is replaced by its absolute value, and norms are omitted. If R is the sum
    of the network's outputs for an input of ones, the flow is the sum of \\|w dR/dw\\| over the
    entries w of all weights of two or more dimensions, computed in float64. The logarithm keeps the
    ranking; it is used because flows of deep networks differ by many powers of ten.

    Args:
        space: space of the subnets.
        seed: seed of the run, whose initial weights they have.
        threads: number of threads for the computation.
        batch: batch with the shapes of the input's fields; floats, of shape (B, ...).
    """

    def __init__(
        self, space: Space, seed: int, threads: int, batch: Mapping[str, torch.Tensor]
    ) -> None:
        self._layers = FirstLayers(space, seed, _make_positive, "in float64")
        self._threads = threads
        self._batch = batch

    def check(self, choices: Sequence[int]) -> None:
        """Refuse layers that do not support an input of ones, because a field has no floats."""
        for name in self._layers.fields(choices):
            if not (field := self._batch[name]).is_floating_point():
                raise ConfigError(
                    f"score synflow: expected layers that read floats, as its input is ones, found "
                    f"the field {name} of {str(field.dtype).removeprefix('torch.')}, as of tokens; "
                    f"use --score naswot where layers have ReLU, or loss"
                )

    def __call__(self, choices: Sequence[int]) -> float:
        """Return the score of a subnet; -inf if the flow is 0.

        Raises:
            ConfigError: if a layer fails in float64, or the flow is not finite in float64.
        """
        found = done_fit(lambda: {"flow": self._flow(choices)}, "the score synflow")["flow"]
        if not math.isfinite(found):
            raise ConfigError(
                f"score synflow: expected a flow that 64 bits hold, found {found} for subnet "
                f"{','.join(map(str, choices))}; use another score for networks as deep as this"
            )
        return math.log(found) if found else -math.inf

    def _flow(self, choices: Sequence[int]) -> float:
        self.check(choices)
        ones = {
            name: torch.ones_like(self._batch[name][:1], dtype=torch.float64)
            for name in self._layers.fields(choices)
        }
        with deterministic_torch(self._threads), torch.enable_grad():
            # Weights and biases of norms have one dimension.
            modules = self._layers.modules(choices)
            weights = [each for module in modules for each in module.parameters() if each.dim() > 1]
            with _WithoutNorms():
                outputs = self._layers.forward(choices, ones)
            sums = [each.sum() for each in outputs if each.requires_grad]
            if not weights or not sums:
                return 0.0
            gradients = torch.autograd.grad(torch.stack(sums).sum(), weights, allow_unused=True)
            return sum(
                float((weight.detach() * gradient).abs().sum())
                for weight, gradient in zip(weights, gradients, strict=True)
                if gradient is not None
            )


def _make_positive(module: nn.Module) -> None:
    """Convert a module to float64 and evaluation mode, and replace values by absolute values."""
    module.double().eval()
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.abs_()
        for parameter in module.parameters():
            parameter.requires_grad_(parameter.is_floating_point())


class _WithoutNorms(TorchFunctionMode):
    """Makes every torch norm return its input."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _NORMS:
            return args[0] if args else given["input"]
        return func(*args, **given)
