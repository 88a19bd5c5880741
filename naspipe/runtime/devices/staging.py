"""Host memory that tensors pass through on their way between a device and a wire."""

from __future__ import annotations

import warnings

import torch

from naspipe.core.errors import reason


class Staging:
    """Hands out host memory, pinned where a GPU copies to or from it; for one thread.

    A pinned piece may be dropped while a copy still uses it: torch gives its memory out again
    only behind the copies that were queued with ``non_blocking``.

    Args:
        device: where the stage computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"
        self._is_copying = False

    @property
    def is_pinned(self) -> bool:
        """Whether the memory is pinned, as far as is known."""
        return self._is_pinned

    def allocate(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor in host memory; its bytes are any."""
        if self._is_pinned:
            try:
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                self._is_pinned = False
                warnings.warn(
                    f"host memory for tensors on their way is not pinned: {reason(error)}; "
                    f"copies from and to the device take longer",
                    stacklevel=3,
                )
        return torch.empty(nbytes, dtype=torch.uint8)

    def to_host(self, raw: torch.Tensor) -> torch.Tensor:
        """Bytes in host memory; those of a device are there after :meth:`wait`."""
        if raw.device.type == "cpu":
            return raw
        host = self.allocate(raw.numel())
        host.copy_(raw, non_blocking=True)
        self._is_copying = True
        return host

    def wait(self) -> None:
        """Wait until every copy that ``to_host`` queued is over, and all computed before it."""
        if self._is_copying:
            torch.cuda.current_stream(self._device).synchronize()
            self._is_copying = False


HOST = Staging(torch.device("cpu"))
"""For stages that compute in host memory."""
