"""The first blocks of one subnet, computed as a run computes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from naspipe.config.errors import BlockInputEditedError, ConfigError, NaspipeError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.user_code import users_code
from naspipe.runtime.blocks.segment import Segment, autocast
from naspipe.runtime.blocks.specs import Tensors, spec_of
from naspipe.runtime.jobs.workload import Workload, field_of
from naspipe.runtime.layers.layer_store import LayerStore
from naspipe.runtime.layers.stored_layer import StoredLayer


class FirstBlocksError(NaspipeError):
    """Something else went wrong than what was tried."""


@dataclass(frozen=True, slots=True)
class FirstBlocks:
    """Tries subnets of a workload on a batch, one layer in memory at a time."""

    workload: Workload
    batch: Mapping[str, torch.Tensor]

    def compute(self, chain: Sequence[int], said: str, with_loss: bool = False) -> None:
        """The forward of a subnet's first blocks; what the last of them raises is refused.

        Args:
            chain: the option of each.
            said: how the refusal begins, in the place of which the error is told.
            with_loss: the chain is a whole subnet, and what is tried is the loss behind it.

        Raises:
            ConfigError: when the last layer, or the loss, raises.
            FirstBlocksError: when a layer before it raises, or it is refused for other reasons.
        """
        workload = self.workload
        inputs = workload.tapped(self.batch) if workload.tapped else ()
        tried = len(chain) - (not with_loss)
        for block, option in enumerate(chain):
            if block < tried:
                with _before():
                    inputs = self._layer(block, option, inputs)
            else:
                with _refused(said):
                    self._layer(block, option, inputs)
        if with_loss:
            fields = [field_of(self.batch, name, 0) for name in workload.loss_fields]
            objective = workload.objective_of(self._stored(len(chain) - 1, chain[-1]).module)
            with _refused(said), autocast(workload.recipe.precision, "cpu"):
                objective(*inputs, *fields)

    def _stored(self, block: int, option: int) -> StoredLayer:
        workload, recipe = self.workload, self.workload.definition.recipe
        trains = workload.runs_in_training_mode
        store = LayerStore(workload.space, workload.definition.seed, recipe, trains=trains)
        candidate = workload.space.blocks[block].candidate(option)
        return store.make(LayerId(FIRST_STREAM, block, candidate))

    def _layer(self, block: int, option: int, inputs: Tensors) -> Tensors:
        """One block, as the profile computes it."""
        space, recipe = self.workload.space, self.workload.definition.recipe
        stored = self._stored(block, option)
        spec = spec_of(space, recipe, block, option)._replace(
            fields=tuple(field_of(self.batch, name, 0) for name in space.fields(block)),
        )
        return Segment(spec, stored.bind(stored.version), inputs, keeps_graph=False).forward()


@contextmanager
def _before() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise FirstBlocksError(str(error)) from error


@contextmanager
def _refused(said: str) -> Iterator[None]:
    try:
        with users_code(said):
            try:
                yield
            except (MemoryError, torch.OutOfMemoryError) as error:
                raise FirstBlocksError(str(error)) from error
            except BlockInputEditedError as error:
                raise ConfigError(str(error)) from error
    except ConfigError:
        raise
    except NaspipeError as error:
        raise FirstBlocksError(str(error)) from error
