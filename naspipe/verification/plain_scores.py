"""Score a subnet as a plain network: the user's own modules with the weights of a checkpoint.

The network is a chain of the layers that ``Run.layer`` and ``Run.shared`` return, called batch by
batch. Its own forward updates the running statistics, and a short loop sums over the validation
batches. No code is shared with the stages that score subnets.

An elastic layer is the whole module, called with a setting. The weights of a module that is cut for
the setting are in other memory, where a matrix product may round differently.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from naspipe.config.blocks import Elastic, LossBlock
from naspipe.config.errors import VerificationError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.jobs.workload import EvaluationRecipe
from naspipe.search.scores import Scores
from naspipe.store.checkpoints import Checkpoint
from naspipe.verification.plain_loop import set_up_torch, start_draws
from naspipe.verification.records import tensor_digest
from naspipe.verification.verifier import SHARE, PlainProcess
from naspipe.worker.checkpoints.restored import layer_key, load_layer

Tensors = tuple[torch.Tensor, ...]
Batch = Mapping[str, torch.Tensor]

TAKEN, LEFT, RESET = "taken", "left", "reset"
"""Running statistics: computed from the calibration batches, those of the run, or the initial
values (mean 0, variance 1)."""

_MEAN, _VARIANCE = "running_mean", "running_var"

_NORMS = {
    functional.batch_norm: "training",
    functional.instance_norm: "use_input_stats",
    torch.batch_norm: "training",
    torch.instance_norm: "use_input_stats",
}
"""The functions that update running statistics, and the argument that makes them do so."""

_NATIVE = ["input", "weight", "bias", _MEAN, _VARIANCE, "", "momentum", "eps", "cudnn_enabled"]
"""Arguments of ``torch.batch_norm`` and ``torch.instance_norm``, which have no signature."""


class PlainScore(NamedTuple):
    """Means over the validation targets; NaN if outputs are not scores of classes."""

    loss: float
    top1: float
    top5: float


class PlainScores:
    """Scores subnets one at a time, each as a separate network.

    Args:
        recipe: data, loss and settings of the evaluation.
        checkpoint: the weights.
        device: device of all computation.
        first_validation: number of the first validation batch, which keys the draws of layers.
    """

    def __init__(
        self, recipe: EvaluationRecipe, checkpoint: Checkpoint, device: str, first_validation: int
    ) -> None:
        workload = recipe.workload
        set_up_torch(workload.recipe.threads)
        self._recipe, self._workload = recipe, workload
        self._space, self._seed = workload.space, workload.definition.seed
        self._checkpoint = checkpoint
        self._device = torch.device(device)
        self._first_validation = first_validation

    def of(self, choices: Sequence[int], statistics: str = TAKEN) -> PlainScore:
        """Return the score of a subnet.

        Args:
            choices: one per choice block.
            statistics: ``TAKEN``, ``LEFT`` or ``RESET``. These are equivalent without calibration
                batches or without norms that have running statistics.
        """
        with torch.no_grad():
            network = self._network(choices)
            found = self._norms(choices) if self._recipe.calibration else {}
            if statistics == TAKEN:
                self._take_statistics(network, found)
            elif statistics == RESET:
                for name in found:
                    _reset(network.get_submodule(name))
            return self._judge(network.eval())

    def _network(self, choices: Sequence[int]) -> PlainSubnet:
        """Return a subnet as a network, with its own copies of all weights."""
        options = self._space.chain(choices)
        if isinstance(self._space.blocks[-1], LossBlock):
            options = options[:-1]
        layers = [self._layer(block, option) for block, option in enumerate(options)]
        fields = [self._space.fields(block) for block in range(len(layers))]
        return PlainSubnet(layers, fields, self._seed).to(self._device)

    def _layer(self, block: int, option: int) -> nn.Module:
        own = self._space.blocks[block]
        candidate = own.candidate(option)
        layer = LayerId(FIRST_STREAM, block, candidate)
        start_draws(f"{self._seed}/layer/{block}/{candidate}")
        module: nn.Module = own.candidates[candidate]()
        key = layer_key(self._space, layer)
        if key in self._checkpoint.versions:
            load_layer(module, key, self._checkpoint.tensors, self._recipe.ema)
        if isinstance(own, Elastic):
            return _OfSetting(module, partial(own.forward_of, option=option))
        return module

    def _norms(self, choices: Sequence[int]) -> dict[str, bool]:
        """Return the modules whose running statistics a forward in training mode changes, by name;
        the value is True for torch norms that the network calls as modules."""
        network = self._network(choices).train()
        named = {
            f"{name}.{key}" if name else key: getattr(owner, key)
            for name, owner in network.named_modules()
            for key in (_MEAN, _VARIANCE)
            if isinstance(owner._buffers.get(key), torch.Tensor)
        }
        before = {name: tensor_digest(buffer) for name, buffer in named.items()}
        called: set[nn.Module] = set()
        for module in network.modules():
            if isinstance(module, _BatchNorm) and type(module).forward is _BatchNorm.forward:
                module.register_forward_hook(lambda norm, *_: called.add(norm))
        self._forward(network, self._on_device(self._workload.data(self._seed, 0)), 0)
        found: dict[str, bool] = {}
        for name in named:
            owner, _, key = name.rpartition(".")
            buffer = network.get_submodule(owner)._buffers.get(key)
            if buffer is not None and tensor_digest(buffer) != before[name]:
                found[owner] = network.get_submodule(owner) in called
        return found

    def _take_statistics(self, network: PlainSubnet, found: Mapping[str, bool]) -> None:
        """Average the statistics of the calibration batches, with other modules in eval mode."""
        network.eval()
        others = []
        for name, is_torchs in found.items():
            norm = network.get_submodule(name)
            _reset(norm)
            if is_torchs:
                norm.train()
                norm.momentum = None  # type: ignore[assignment]  # an average over all batches
            else:
                others.append(norm)
        with _Averaging(others) if others else nullcontext():
            for number in range(self._recipe.calibration if found else 0):
                batch = self._on_device(self._workload.data(self._seed, number))
                self._forward(network, batch, number)

    def _judge(self, network: PlainSubnet) -> PlainScore:
        """Return the means over all validation targets."""
        workload = self._workload
        last, sums = len(self._space.blocks) - 1, [0.0] * 5
        trained = None
        if isinstance(self._space.blocks[last], LossBlock):
            trained = self._layer(last, 0).to(self._device).eval()
        for number in range(self._recipe.validation):
            batch = self._on_device(self._recipe.held_out(self._seed, number))
            outputs = self._forward(network, batch, self._first_validation + number)
            target = batch[workload.target_field]
            # A trained loss is copied, so that its buffers are the same for all batches.
            loss: Any = workload.loss if trained is None else copy.deepcopy(trained)
            with self._autocast():
                mean = loss(*outputs, *(batch[name] for name in workload.judged_fields))
            own = workload.loss
            ignored = getattr(own, "padding", getattr(own, "ignore_index", None))
            row = _sums_of_batch(float(mean.double()), outputs[0], target, ignored)
            sums = [total + each for total, each in zip(sums, row, strict=True)]
        total, targets, ranked, first, top = sums
        means = [hits / ranked if ranked else float("nan") for hits in (first, top)]
        return PlainScore(total / targets, *means)

    def _forward(self, network: PlainSubnet, batch: Batch, number: int) -> Tensors:
        with self._autocast():
            found: Tensors = network(batch, number)
        return found

    def _on_device(self, batch: Batch) -> Batch:
        return {
            name: value.to(self._device)
            for name, value in batch.items()
            if isinstance(value, torch.Tensor)
        }

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._workload.recipe.precision == "bf16":
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return nullcontext()


class PlainSubnet(nn.Module):
    """A subnet: calls its layers one after the other; draws are keyed by block and batch."""

    def __init__(
        self, layers: Sequence[nn.Module], fields: Sequence[Sequence[str]], seed: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._fields, self._seed = fields, seed

    def forward(self, batch: Batch, number: int) -> Tensors:
        state: Tensors = ()
        for block, layer in enumerate(self.layers):
            start_draws(f"{self._seed}/0/{block}/{number}")
            found = layer(*state, *(batch[name] for name in self._fields[block]))
            state = found if isinstance(found, tuple) else (found,)
        return state


class _OfSetting(nn.Module):
    """An elastic layer, called with one setting."""

    def __init__(self, module: nn.Module, forward_of: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.module = module
        self._forward_of = forward_of

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._forward_of(self.module)(*inputs)


class _Averaging(TorchFunctionMode):
    """Makes norms in other code update running statistics, averaged over all calls."""

    def __init__(self, owners: Sequence[nn.Module]) -> None:
        super().__init__()
        buffers = [owner.get_buffer(_MEAN) for owner in owners]
        self._memory = [range(b.data_ptr(), b.data_ptr() + b.nbytes) for b in buffers]
        self._calls: Counter[tuple[Any, ...]] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        switch = _NORMS.get(func)
        if switch is None:
            return func(*args, **(kwargs or {}))
        is_native = func in (torch.batch_norm, torch.instance_norm)
        names = (
            [n or switch for n in _NATIVE] if is_native else [*inspect.signature(func).parameters]
        )
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        mean = given.get(_MEAN)
        if mean is not None and any(mean.data_ptr() in memory for memory in self._memory):
            part = mean.data_ptr(), mean.shape
            self._calls[part] += 1
            given |= {switch: True, "momentum": 1.0 / self._calls[part]}
        return func(*given.values()) if is_native else func(**given)


def _reset(norm: nn.Module) -> None:
    norm.get_buffer(_MEAN).zero_()
    norm.get_buffer(_VARIANCE).fill_(1)
    if isinstance(norm, _BatchNorm):
        norm.reset_running_stats()


def _sums_of_batch(
    mean: float, scores: torch.Tensor, target: torch.Tensor, ignored: Any
) -> Iterator[float]:
    """Yield the sum of the targets' losses, the number of targets, the number of ranked targets,
    and how many of these rank first or among the first five. Ties are broken by the class index.
    """
    counts = target != ignored if isinstance(ignored, int) else torch.ones_like(target).bool()
    targets = float(counts.sum())
    yield mean * targets if targets else 0.0
    yield targets
    has_classes = not target.is_floating_point() and scores.dim() > 1
    if not has_classes or scores.shape[:-1] != target.shape:
        yield from (0.0, 0.0, 0.0)
        return
    flat = scores.flatten(0, -2).double()
    wanted = target.flatten().clamp(0, flat.size(1) - 1).unsqueeze(1)
    order = (-flat).argsort(dim=1, stable=True)
    places = (order == wanted).int().argmax(1)
    is_number = ~flat.gather(1, wanted).isnan().squeeze(1) & counts.flatten()
    yield targets
    for most in (1, 5):
        yield float((is_number & (places < most)).sum())


LEAST_SECONDS = 60.0
"""At the end of a search, the launcher waits for the plain scores for :data:`SHARE` of the time
that the search took, but at least for this number of seconds."""

_STATISTICS = {
    LEFT: "running statistics were not taken again: the score is that of the run's own",
    RESET: "running statistics were not taken: the score is that of mean 0 and variance 1",
}
"""The likely reason for a difference, by the statistics that reproduce the score."""


@dataclass(frozen=True, slots=True)
class VerifiedScores:
    """The number of verified scores of a search."""

    scores: int
    """Number of scores that are bitwise equal to those of the plain network."""
    because: str = ""
    """Why not all requested scores were compared; empty if they were."""

    def __str__(self) -> str:
        if not self.scores:
            return f"verified: no, {self.because}"
        count = f"{self.scores} score{'s' * (self.scores > 1)}"
        return f"verified: {count}, 0 bits differ" + (f" ({self.because})" if self.because else "")

    def as_dict(self) -> dict[str, Any]:
        return {"scores": self.scores, **({"because": self.because} if self.because else {})}


class ScoreVerifier:
    """Compares scores with those of plain networks; a context manager.

    Args:
        make: makes the plain scorer in the forked process.
        threads: intra-op threads of that process.
        because: limitation of verified scores, if any.
        patience: seconds to wait at the end; None for a fraction of the search's time.
    """

    def __init__(
        self,
        make: Callable[[], PlainScores],
        threads: int,
        because: str = "",
        patience: float | None = None,
    ) -> None:
        self._patience = patience
        self._make = make
        self._plain = PlainProcess(self._score, threads, "plain network")
        self._start = time.monotonic()
        self._waiting: dict[int, tuple[tuple[int, ...], Scores]] = {}
        self._verified: set[int] = set()
        self._because = because

    def _score(self, launcher: Connection) -> Iterator[Mapping[str, Any]]:
        """Answer requests, in the forked process."""
        plain = self._make()
        while True:
            request = json.loads(launcher.recv_bytes())
            choices, found = request["choices"], request["scores"]
            scores, likely = _texts(plain.of(choices)), ""
            if scores != found:
                other = (
                    reason
                    for statistics, reason in _STATISTICS.items()
                    if _texts(plain.of(choices, statistics)) == found
                )
                likely = next(other, "")
            yield {"subnet": request["subnet"], "scores": scores, "likely": likely}

    def __enter__(self) -> Self:
        self._plain.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._plain.end()

    def ask(self, subnet: int, choices: Sequence[int], scores: Scores) -> None:
        """Request the plain score of a subnet, once per subnet."""
        if not self._plain.is_running or subnet in self._waiting or subnet in self._verified:
            return
        self._waiting[subnet] = tuple(choices), scores
        request = {"subnet": subnet, "choices": list(choices), "scores": _texts(scores)}
        self._plain.send(request)

    def poll(self, seconds: float = 0.0) -> None:
        """Compare the scores that have arrived, and wait up to ``seconds`` for more.

        Raises:
            VerificationError: if a score differs.
        """
        for answer in self._plain.answers(seconds):
            if because := answer.get("because"):
                self._give_up(because)
                continue
            subnet = int(answer["subnet"])
            choices, found = self._waiting.pop(subnet)
            for name, text in answer["scores"].items():
                expected, here = float(text), float(getattr(found, name))
                if bits_of(expected) != bits_of(here):
                    likely = f"; {answer['likely']}" if answer["likely"] else ""
                    raise VerificationError(
                        f"subnet {subnet} ({','.join(map(str, choices))}): expected the {name} of "
                        f"the plain network, {expected!r}, found {here!r} in the search{likely}"
                    )
            self._verified.add(subnet)

    def finish(self) -> VerifiedScores:
        """Wait for answers within the time limit; return the number of verified scores."""
        share = max(LEAST_SECONDS, SHARE * (time.monotonic() - self._start))
        deadline = time.monotonic() + (share if self._patience is None else self._patience)
        while self._waiting and self._plain.is_running:
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up("because the plain network took too long")
            else:
                self.poll(left)
        self._plain.end()
        return VerifiedScores(len(self._verified), self._because)

    def _give_up(self, because: str) -> None:
        self._because = because
        self._plain.end()


def bits_of(score: float) -> bytes:
    """Return the bytes of a score for comparison; all NaNs are equal."""
    return b"nan" if math.isnan(score) else struct.pack(">d", score)


def _texts(scores: Scores | PlainScore) -> dict[str, str]:
    return {name: repr(float(getattr(scores, name))) for name in PlainScore._fields}
