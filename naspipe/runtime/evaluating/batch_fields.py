"""The fields of the batches that all subnets of a search are judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from naspipe.runtime.jobs.workload import field_of


class BatchFields:
    """Each field is fetched once, and again where a layer has changed it in place.

    In training the first block may do so, as each step has a batch of its own. Here all subnets
    are to see the same.

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
        if field is None or _changes(field) != changes:
            field = self._to_device(field_of(self._batch(number), name, number))
            self._kept[number, name] = field, _changes(field)
        return field


def _changes(tensor: torch.Tensor) -> int:
    """How often it was changed in place; 0 where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version
