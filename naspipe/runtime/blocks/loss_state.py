"""What a loss keeps from one call to the next: nothing may depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.runtime.blocks.edits import times_edited
from naspipe.runtime.jobs.losses import Loss, name_of_loss


class LossState:
    """The buffers of a loss, which no checkpoint keeps and no other stage is told.

    Args:
        loss: the user's; only a module has buffers. None if a layer of the run holds them.
    """

    def __init__(self, loss: Loss | None) -> None:
        self._name = name_of_loss(loss)
        self._modules = list(loss.modules()) if isinstance(loss, nn.Module) else []

    @contextmanager
    def left_as_it_is(self) -> Iterator[None]:
        """The loss is called inside.

        Raises:
            ConfigError: when it changed a buffer.
        """
        before = self._seen()
        yield
        for (name, *seen), (_, *earlier) in zip(self._seen(), before, strict=True):
            if seen != earlier:
                raise ConfigError(
                    f"loss {self._name}: expected the same result for the same batch, as no "
                    f"checkpoint keeps what a loss does, found it to change its buffer {name}; "
                    f"keep it in the last layer, which may return it beside its output"
                )

    def _seen(self) -> list[tuple[str, int, int]]:
        return [
            (name, id(buffer), times_edited(buffer))
            for module in self._modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
