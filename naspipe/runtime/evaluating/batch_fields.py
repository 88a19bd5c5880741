"""The fields of the batches that all subnets of a search are judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from naspipe.runtime.jobs.workload import field_of


class BatchFields:
    """Each field is fetched once, and no subnet sees what another one did to it in place.

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


def apart(
    outputs: Sequence[torch.Tensor], fields: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """A layer's outputs; those that are fields in whole or in part as copies.

    The next layer may change them in place, and another subnet has the same field.
    """
    given = {field.untyped_storage().data_ptr() for field in fields}
    return tuple(
        output.clone() if output.untyped_storage().data_ptr() in given else output
        for output in outputs
    )


def _changes(tensor: torch.Tensor) -> int:
    """How often it was changed in place; 0 where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version
