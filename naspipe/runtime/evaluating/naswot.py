"""NASWOT: how differently a network's rectifiers code the samples of a batch, without training.

J. Mellor, J. Turner, A. Storkey and E. Crowley, Neural architecture search without training,
ICML 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.evaluating.calibration import Norm, find_norms, fresh_statistics
from naspipe.runtime.evaluating.first_weights import FirstLayers

_ATEN = torch.ops.aten

_RECTIFIERS = {_ATEN.relu, _ATEN.relu_, _ATEN.leaky_relu, _ATEN.leaky_relu_}
_CLIPPED = {_ATEN.hardtanh, _ATEN.hardtanh_}
"""ReLU6, where the least is 0."""


class Naswot:
    """Scores subnets by log \\|K\\|; more is better.

    Each rectified unit says of each sample whether its input is above 0: one bit of the sample's
    code. K has a row and a column for each sample, and says in how many bits two samples agree.
    Units of ReLU count, also of functions, and as an extension those of ReLU6 and leaky ReLU.

    Args:
        space: whose subnets.
        seed: of the run, whose first weights they have.
        threads: of the compute.
        batch: of B samples, in the first dimension of each field.
    """

    def __init__(
        self, space: Space, seed: int, threads: int, batch: Mapping[str, torch.Tensor]
    ) -> None:
        self._layers = FirstLayers(space, seed, nn.Module.eval, "of the batch")
        self._norms: dict[str, Sequence[Norm]] = {}
        """By the label of a layer with its option."""
        self._threads = threads
        self._batch = batch

    def __call__(self, choices: Sequence[int]) -> float:
        """The score of a subnet; -inf where no units tell all samples apart.

        Raises:
            ConfigError: when a layer fails, or rectifies something else than B samples.
        """
        kernel, units = self._kernel(choices)
        with deterministic_torch(self._threads):
            return log_determinant(kernel, units)

    def units(self, choices: Sequence[int]) -> int:
        """How many units of one sample are rectified; raises as a call."""
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
        """Norms use those of the batch, as in a training step; all else is evaluated."""
        return fresh_statistics(label, module, self._norms[label])


def log_determinant(kernel: torch.Tensor, units: int) -> float:
    """Of a kernel of codes, of shape (B, B) and whole numbers; -inf where it is singular.

    That it is, when two samples have one code, or when there are fewer units than B - 1: it is
    the sum of a matrix of that rank and one of rank 1.
    """
    samples = len(kernel)
    others = kernel - units * torch.eye(samples, dtype=kernel.dtype)
    if units + 1 < samples or bool((others == units).any()):
        return -math.inf
    sign, found = torch.linalg.slogdet(kernel)
    return float(found) if sign > 0 else -math.inf


class _Codes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, for each two samples, the units that code them alike."""

    def __init__(self, samples: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel = torch.zeros(samples, samples, dtype=torch.float64)
        self.units = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if _rectifies(func.overloadpacket, args, given):
            self._add(args[0])
        return func(*args, **given)

    def _add(self, inputs: torch.Tensor) -> None:
        samples = len(self.kernel)
        if inputs.dim() < 1 or inputs.shape[0] != samples:
            raise ConfigError(
                f"score naswot: expected layers that rectify {samples} samples in the first "
                f"dimension, found a tensor of shape {tuple(inputs.shape)}; use another score"
            )
        codes = (inputs > 0).reshape(samples, -1).double()
        self.units += codes.shape[1]
        self.kernel += codes @ codes.T + (1 - codes) @ (1 - codes).T


def _rectifies(operation: Any, args: Sequence[Any], given: Mapping[str, Any]) -> bool:
    if operation in _CLIPPED:
        least = args[1] if len(args) > 1 else given.get("min_val", -1)
        return float(least) == 0.0
    return operation in _RECTIFIERS
