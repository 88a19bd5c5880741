"""The layers of one stage, created when first needed, each with its own seed.

The module also contains the checks of a factory's results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, MutableMapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from naspipe.config.blocks import Elastic
from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Frozen, Rule
from naspipe.config.space import Space
from naspipe.engine.policies import CausalPolicy, SyncPolicy
from naspipe.machine.determinism import layer_seed, seed_draws
from naspipe.worker.layers.kept_state import keeps_state
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.layers.used_entries import UsedEntries

KEPT_AWAY = 64
"""Number of layers that keep their modules after leaving, in case they return."""

_CAUSAL = CausalPolicy()
_FROZEN = Frozen()


class LayerStore:
    """Creates each layer on first access, and keeps it while it is on this stage.

    The layers that most recently moved to other stages keep their modules, which need not be
    created again if the layers return.

    Args:
        space: the search space of the layers.
        seed: the seed of the run, from which each layer's seed is derived.
        recipe: defines the optimizer.
        on_made: called with each new layer, which is in host memory.
        policy: determines which layers are written while they are read, and how they step.
        restore: restores a new layer to its state in a checkpoint.
        on_dropped: called for each layer that left and is no longer kept.
        trains: whether modules are in training mode.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        recipe: Recipe,
        on_made: Callable[[LayerId, StoredLayer], None] | None = None,
        policy: SyncPolicy = _CAUSAL,
        restore: Callable[[LayerId, StoredLayer], None] | None = None,
        on_dropped: Callable[[LayerId], None] | None = None,
        trains: bool = True,
    ) -> None:
        self.stateless: Collection[tuple[int, int]] = ()
        """Pairs (block, candidate) of the layers that were found to have no state."""
        self._trains = trains
        self._policy = policy
        self._on_made = on_made
        self._restore = restore
        self._on_dropped = on_dropped
        self._space = space
        self._seed = seed
        self._recipe = recipe
        self._layers: dict[LayerId, StoredLayer] = {}
        self._owners: MutableMapping[torch.Tensor, str] = WeakTensorKeyDictionary()
        """Labels of layers by their parameters and buffers. Forwards may replace buffers."""
        self._away: set[LayerId] = set()
        self._left: dict[LayerId, None] = {}
        """Layers that left but keep their modules, in the order in which they left."""

    def __getitem__(self, layer: LayerId) -> StoredLayer:
        stored = self._layers.get(layer)
        return self.make(layer) if stored is None else stored

    def make(self, layer: LayerId) -> StoredLayer:
        """Return the layer, creating it if needed. Its bits do not depend on the creation time."""
        if layer not in self._layers:
            if layer in self._away:
                raise InvariantError(f"layer {layer} was asked for, but is on another stage")
            stored = self._make(layer)
            if self._restore is not None:
                self._restore(layer, stored)
            if self._on_made is not None:
                self._on_made(layer, stored)
            self._layers[layer] = stored
        return self._layers[layer]

    def prepare(self, layer: LayerId) -> None:
        """Create a layer that will be needed, unless it will arrive from another stage."""
        if layer not in self._away:
            self.make(layer)

    def leave(self, layer: LayerId) -> None:
        self._away.add(layer)
        self._left[layer] = None
        if len(self._left) > KEPT_AWAY:
            dropped = next(iter(self._left))
            del self._left[dropped]
            for _, tensor in tensors_of(self._layers.pop(dropped).module):
                self._owners.pop(tensor, None)
            if self._on_dropped is not None:
                self._on_dropped(dropped)

    def give_up(self, layer: LayerId) -> None:
        """Mark the local copy of a layer as outdated, because another stage writes the layer."""
        self._away.add(layer)

    def come_back(self, layer: LayerId) -> StoredLayer:
        """Return a layer with outdated contents, to receive the state from another stage."""
        self._away.discard(layer)
        self._left.pop(layer, None)
        return self[layer]

    @property
    def num_parameters(self) -> int:
        """Number of parameter tensors of all layers that have been created."""
        return sum(len(stored.parameters) for stored in self._layers.values())

    def find(self, layer: LayerId) -> StoredLayer | None:
        return self._layers.get(layer)

    def items(self) -> list[tuple[LayerId, StoredLayer]]:
        return sorted(pair for pair in self._layers.items() if pair[0] not in self._away)

    def _make(self, layer: LayerId) -> StoredLayer:
        label = self._space.label(layer.block, layer.candidate)
        block = self._space.blocks[layer.block]
        seed_draws(layer_seed(self._seed, layer.block, layer.candidate))
        module = block.candidates[layer.candidate]()
        check_made(label, module, self._policy.keeps_versions(block.rule))
        if self._recipe.steps.passes > 1:
            check_hooks(label, module)
        block.set_mode(module, self._trains)
        for what, tensor in tensors_of(module):
            owner = self._owners.setdefault(tensor, label)
            if owner != label:
                raise shared(what, owner, label)
        rule: Rule = block.rule
        if (layer.block, layer.candidate) in self.stateless:
            if keeps_state(module):
                raise ConfigError(
                    f"layer {label}: expected its factory to make a module without parameters, "
                    f"buffers or other state, as it did before the run, found {type(module)} with "
                    f"some; a factory has to make the same layer each time"
                )
            rule = _FROZEN
        keeps_versions = self._policy.keeps_versions(rule)
        own = self._policy.own_step(rule)
        used = None
        if isinstance(block, Elastic) and block.step == "slice":
            used = UsedEntries(block, module)
        return StoredLayer(
            label, rule, module, self._recipe, keeps_versions, own, block.apply, used
        )


def check_hooks(label: str, module: nn.Module) -> None:
    """Raise ConfigError for a hook that a plain loop calls with the partial sum of a step's passes.

    naspipe computes separate gradients for each pass, which are summed afterwards.
    """
    for name, each in module.named_parameters():
        if _has_late_hooks(each):
            raise ConfigError(
                f"layer {label}: expected no register_post_accumulate_grad_hook where a step has "
                f"several passes, as it would be given the gradient of each pass and not their "
                f"sum, found one on {name}; change gradients in the layer's forward, or by "
                f"Tensor.register_hook"
            )


def check_sized(label: str, module: Any) -> None:
    """Raise ConfigError unless a factory returned a module whose tensors have known sizes."""
    expected = f"layer {label}: expected its factory to return"
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{expected} a torch.nn.Module, found {type(module).__name__}")
    for name, each in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(each):
            raise ConfigError(
                f"{expected} a module with sizes, found {name} without one, as in nn.LazyLinear; "
                f"give the number of inputs, as in nn.Linear(inputs, outputs)"
            )


def check_made(label: str, module: Any, keeps_versions: bool) -> None:
    """Raise ConfigError unless a factory returned a sized module that a run supports.

    With ``keeps_versions``, passes read copies of older versions, which have no hooks.
    """
    check_sized(label, module)
    for name, each in (*module.named_parameters(), *module.named_buffers()):
        if keeps_versions and (each._backward_hooks or _has_late_hooks(each)):
            raise ConfigError(
                f"layer {label}: expected its factory to return parameters without hooks, as its "
                f"rule has older versions read, whose copies have none, found one on {name}; "
                f"use the rule exact, or change the gradient in the layer's forward"
            )


def tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter and buffer, with the word for its kind."""
    for parameter in module.parameters():
        yield "parameter", parameter
    for buffer in module.buffers():
        yield "buffer", buffer


def shared(what: str, owner: str, label: str) -> ConfigError:
    if what == "buffer":
        return ConfigError(
            f"layers {owner} and {label} share one buffer: expected each layer to have its own, as "
            f"layers live on different stages and a forward may change buffers; let each factory "
            f"make its own, of a tensor from outside a copy, b.clone(), which changes nothing for "
            f"a constant such as a mask"
        )
    return ConfigError(
        f"layers {owner} and {label} share one {what}: tied layers are not supported, as a layer "
        f"has one place in the chain and is written by the stage there; let each factory make its "
        f"own, of a tensor from outside a copy, w.clone() (equal at the start: init_from=)"
    )


def made_before(layer: str, what: str) -> ConfigError:
    """Return the error for a factory that returns a ``module`` or ``memory`` of an earlier call."""
    found, todo = "takes a parameter from outside", "take a copy, as in w.clone()"
    if what == "module":
        found = "hands out what was made before, as under functools.cache"
        todo = "make it inside, as in lambda: nn.Linear(4, 4)"
    return ConfigError(
        f"{layer}: expected its factory to make a new module each time, found one that {found}, "
        f"which a run would train on from where the last one left it; {todo}, or begin with "
        f"weights by init_from="
    )


def _has_late_hooks(tensor: torch.Tensor) -> bool:
    return bool(getattr(tensor, "_post_accumulate_grad_hooks", None))
