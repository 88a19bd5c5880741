"""The results of a run, read from its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from naspipe.checks.fingerprint import check_run_layers
from naspipe.config.blocks import LossBlock
from naspipe.config.errors import ConfigError, NaspipeError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.messages import says_keywords
from naspipe.config.space import Space
from naspipe.store.access_log import RunLog
from naspipe.store.access_order import orders_of_layers, with_settings
from naspipe.store.access_segments import Wanted
from naspipe.store.checkpoints import Checkpoint, read_checkpoint
from naspipe.store.labels import SpaceLabels, describe_space, settings_of
from naspipe.store.run_directory import RunDirectory
from naspipe.store.validations import Validation, read_validations
from naspipe.streams.stream_file import read_stream
from naspipe.worker.checkpoints.restored import layer_key, load_layer


class Run:
    """The results of a run.

    Args:
        space: the space it trained, or a function that returns it at first use; its factories make
            the modules that :meth:`layer` fills.
        path: its run directory.
    """

    def __init__(self, space: Space | Callable[[], Space], path: Path) -> None:
        self._space = space
        self.directory = RunDirectory(path)
        self._checkpoint: Checkpoint | None = None

    def __repr__(self) -> str:
        try:
            manifest, losses = self.manifest, self.losses
            defined, status = manifest["definition"], manifest["status"]
            last = f", last loss {losses[-1]:.4g}" if losses else ""
            said = f"space {defined['space']}, {defined['steps']} steps, {status}{last}"
        except (NaspipeError, KeyError, TypeError):
            said = "not a run directory that can be read"
        return f"<Run {self.directory.path}: {said}>"

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def space(self) -> Space:
        """The space it trained.

        Raises:
            ConfigError: if the run was opened without it, and it cannot be found from the manifest.
        """
        if not isinstance(self._space, Space):
            self._space = self._space()
        return self._space

    @property
    def manifest(self) -> dict[str, Any]:
        """The definition of the run, its environment and its measurements."""
        return self.directory.read_manifest()

    @property
    def stream(self) -> list[tuple[int, ...]]:
        """The choices of every subnet, in sequence order."""
        return [tuple(choices) for choices in read_stream(self.directory.stream)]

    @property
    def losses(self) -> list[float]:
        """The loss of every pass, in sequence order."""
        return [loss.value for loss in self.directory.read_losses()]

    @property
    def metrics(self) -> dict[str, list[float]]:
        """The values of the user's metrics for every pass, in sequence order, by name."""
        found: dict[str, list[float]] = {}
        for loss in self.directory.read_losses():
            for name, number in loss.beside.metrics:
                found.setdefault(name, []).append(number.value)
        return found

    @property
    def validations(self) -> list[Validation]:
        """Results on held-out data during the run, in the order of the checkpoints."""
        return read_validations(self.directory.validation)

    @says_keywords
    def layer(self, block: int, candidate: int, *, ema: bool = False) -> nn.Module:
        """Return a trained candidate; with ``ema``, with the moving average of its weights.

        Raises:
            ConfigError: if the space has no such layer, the run never used it, or it kept no
                averages.
        """
        return self._load(self.space.layer(f"{block}.{candidate}"), ema)

    @says_keywords
    def shared(self, name: str, *, ema: bool = False) -> nn.Module:
        """Return a trained shared layer; with ``ema``, the moving average of its weights."""
        return self._load(self.space.layer(name), ema)

    def chosen(self, position: int, option: int, *, ema: bool = False) -> nn.Module:
        """Return the module of an option of a block; an elastic layer is cut for its setting."""
        block = self.space.blocks[position]
        layer = LayerId(FIRST_STREAM, position, block.candidate(option))
        module: nn.Module = block.cut_of(self._load(layer, ema), option)
        return module

    def check_averages(self) -> None:
        """Check that the run kept moving averages."""
        if not self.manifest["definition"]["recipe"].get("ema"):
            raise ConfigError(
                f"{self.directory.path}: expected a run that kept moving averages, found one "
                f"without; train with --set ema=0.999"
            )

    def access_order(self, block: int | str, candidate: int | None = None) -> str:
        """Return a layer's accesses, as in ``2F-2B-5F-5B``.

        The setting of an elastic layer is included, as in ``2F[512]``. For a shared or an elastic
        layer, ``block`` is the name.
        """
        layer = self.space.layer(str(block) if candidate is None else f"{block}.{candidate}")
        wanted = Wanted(layers=frozenset([layer]), backwards=False)
        order = orders_of_layers(RunLog(self.directory.path).columns(wanted)).get(layer, "")
        labels = SpaceLabels(self.manifest["space"])
        return with_settings(order, labels.settings(layer, self.stream))

    def _load(self, layer: LayerId, ema: bool) -> nn.Module:
        if ema:
            self.check_averages()
        if self._checkpoint is None:
            self._checkpoint = read_checkpoint(self.directory.checkpoint("final"))
        module: nn.Module = self.space.blocks[layer.block].candidates[layer.candidate]()
        return load_layer(module, layer_key(self.space, layer), self._checkpoint.tensors, ema)


def loss_layer_of(manifest: Mapping[str, Any]) -> str | None:
    """Return the label of the layer that is the loss of a run, if any, from the run's manifest."""
    label: str | None = manifest["space"].get("loss_layer")
    return label


def check_space(run: Run) -> None:
    """Check that the space is the one that the run trained; its loss layer may be missing."""
    recorded, space = run.manifest["space"], run.space
    has_loss = isinstance(space.blocks[-1], LossBlock)
    lacks_loss = loss_layer_of(run.manifest) is not None and not has_loss
    count = len(recorded["labels"]) - lacks_loss
    pairs: dict[str, tuple[list[Any], list[Any]]] = {
        "blocks": (recorded["labels"][:count], list(space.labels)),
        "candidates": (recorded["candidates"][:count], [len(b.candidates) for b in space.blocks]),
        "settings": (settings_of(recorded), settings_of(describe_space(space))),
    }
    for what, (expected, found) in pairs.items():
        if expected != found:
            raise ConfigError(
                f"run {run.directory.path} trained the space {recorded['name']}: expected the "
                f"{what} {_short(expected)}, found {_short(found)} in {space.name}"
            )
    check_run_layers(run.directory, space)


def _short(listed: Sequence[Any]) -> str:
    return f"{', '.join(map(str, listed[:6]))}{', ...' if len(listed) > 6 else ''} ({len(listed)})"
