"""GPU memory that other processes of the host read: the calls of CUDA IPC, and nothing else.

**Never run on GPUs.** CUDA's driver is called itself, not torch: what torch shares is counted in a
file that a killed process leaves behind, and would be opened in a context of the other GPU, which
takes some hundred MB for each. The driver gives all of it back when a process ends, however it
ends.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from naspipe.config.errors import TransportError
from naspipe.runtime.devices.cuda_device import record_end

_DRIVER = "libcuda.so.1"
_HANDLE_BYTES = 64
_OUT_OF_MEMORY = 2
_ENABLE_PEER_ACCESS = 1

_Address, _Size = ctypes.c_uint64, ctypes.c_size_t


class _Handle(ctypes.Structure):
    """As the driver has it: passed by value."""

    _fields_ = (("data", ctypes.c_ubyte * _HANDLE_BYTES),)


_CALLS: dict[str, tuple[Any, ...]] = {
    "cuMemAlloc_v2": (ctypes.POINTER(_Address), _Size),
    "cuMemFree_v2": (_Address,),
    "cuIpcGetMemHandle": (ctypes.POINTER(_Handle), _Address),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(_Address), _Handle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (_Address,),
    "cuMemcpyAsync": (_Address, _Address, _Size, ctypes.c_void_p),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}
"""Functions of the driver, and their arguments."""


class CudaMemory:
    """Memory of one GPU; for the thread that computes, in whose queue it copies.

    Args:
        device: the stage's GPU, which is the thread's current one.

    Raises:
        TransportError: when the driver cannot be called.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.empty(1, device=device)  # the driver works in the context that this makes
        try:
            driver = ctypes.CDLL(_DRIVER)
            for name, arguments in _CALLS.items():
                getattr(driver, name).argtypes = arguments
        except (OSError, AttributeError) as error:
            raise TransportError(f"{_DRIVER} cannot be used: {error}") from error
        self._driver = driver
        self._made: list[int] = []
        self._opened: list[int] = []

    def make(self, nbytes: int) -> tuple[int, bytes] | None:
        """See :class:`naspipe.runtime.wire.ports.PeerMemory`."""
        address, handle = _Address(), _Handle()
        result = self._driver.cuMemAlloc_v2(ctypes.byref(address), nbytes)
        if result == _OUT_OF_MEMORY:
            torch.cuda.empty_cache()
            result = self._driver.cuMemAlloc_v2(ctypes.byref(address), nbytes)
        if result == _OUT_OF_MEMORY:
            return None
        self._check("cuMemAlloc", result)
        self._made.append(address.value)
        self._check("cuIpcGetMemHandle", self._driver.cuIpcGetMemHandle(handle, address))
        return address.value, bytes(handle)

    def open(self, handle: bytes) -> int:
        """See :class:`naspipe.runtime.wire.ports.PeerMemory`."""
        if len(handle) != _HANDLE_BYTES:
            raise TransportError(f"expected a handle of {_HANDLE_BYTES} bytes, found {len(handle)}")
        address, theirs = _Address(), _Handle.from_buffer_copy(handle)
        opening = self._driver.cuIpcOpenMemHandle_v2
        self._check("cuIpcOpenMemHandle", opening(address, theirs, _ENABLE_PEER_ACCESS))
        self._opened.append(address.value)
        return address.value

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """See :class:`naspipe.runtime.wire.ports.PeerMemory`."""
        queue = torch.cuda.current_stream(self._device).cuda_stream
        self._check("cuMemcpyAsync", self._driver.cuMemcpyAsync(target, source, nbytes, queue))

    def mark(self) -> torch.cuda.Event:
        """See :class:`naspipe.runtime.wire.ports.PeerMemory`."""
        return record_end(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """See :class:`naspipe.runtime.wire.ports.PeerMemory`."""
        for address in self._opened:
            self._driver.cuIpcCloseMemHandle(address)
        for address in self._made:
            self._driver.cuMemFree_v2(address)
        self._opened.clear()
        self._made.clear()

    def _check(self, call: str, result: int) -> None:
        if result:
            name = ctypes.c_char_p()
            self._driver.cuGetErrorName(result, ctypes.byref(name))
            said = (name.value or b"").decode(errors="replace") or f"error {result}"
            raise TransportError(
                f"{self._device}: {call} failed ({said}); use --set data_path=shm, which goes "
                f"through host memory"
            )
