"""The fields of the batches that all subnets of a search are judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from naspipe.runtime.blocks.edits import times_edited
from naspipe.runtime.jobs.workload import field_of


class BatchFields:
    """Each field is fetched once, and again where a layer has changed it in place.

    All subnets are to see the same.

    Args:
        batch: by number.
        to_device: brings a tensor there.
    """

    def __init__(
        self,
        batch: Callable[[int], Mapping[str, torch.Tensor]],
        to_device: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._batch = batch
        self._to_device = to_device
        self._kept: dict[tuple[int, str], tuple[torch.Tensor, int]] = {}
        """With how often each had been changed when it came."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (field for field, _ in self._kept.values())

    def of(self, number: int, name: str) -> torch.Tensor:
        """A batch's field, as the data made it.

        Raises:
            ConfigError: when the batch has no such tensor.
        """
        field, changes = self._kept.get((number, name), (None, 0))
        if field is None or times_edited(field) != changes:
            field = self._to_device(field_of(self._batch(number), name, number))
            self._kept[number, name] = field, times_edited(field)
        return field
