"""What CUDA's driver is asked for, by a stand-in for the driver in host memory."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from naspipe.config.errors import TransportError
from naspipe.wire import device_rings as peer_memory
from naspipe.wire.device_rings import CudaMemory

CPU, QUEUE = torch.device("cpu"), 77
_ADDRESS = ctypes.POINTER(ctypes.c_uint64)
_HANDLE = ctypes.POINTER(peer_memory._Handle)
_TEXT = ctypes.POINTER(ctypes.c_char_p)


class Driver:
    """Functions that are called as those of a library are; each answers a status."""

    def __init__(self):
        self.pieces, self.asked, self.short = {}, [], 0
        number, size, word = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint
        self.cuMemAlloc_v2 = self._call(self._alloc, _ADDRESS, size)
        self.cuMemFree_v2 = self._call(self._free, number)
        self.cuIpcGetMemHandle = self._call(self._handle, _HANDLE, number)
        self.cuIpcOpenMemHandle_v2 = self._call(self._open, _ADDRESS, peer_memory._Handle, word)
        self.cuIpcCloseMemHandle = self._call(lambda at: self.asked.append("close") or 0, number)
        self.cuMemcpyAsync = self._call(self._copy, number, number, size, ctypes.c_void_p)
        self.cuGetErrorName = self._call(self._name, ctypes.c_int, _TEXT)

    @staticmethod
    def _call(function, *arguments):
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(function)

    def _alloc(self, address, nbytes):
        if self.short:
            self.short -= 1
            return 2
        piece = (ctypes.c_ubyte * nbytes)()
        address[0] = ctypes.addressof(piece)
        self.pieces[address[0]] = piece
        return 0

    def _free(self, address):
        del self.pieces[address]
        return 0

    def _handle(self, handle, address):
        ctypes.memmove(handle, address.to_bytes(8, "little") + b"\x00" + b"x" * 55, 64)
        return 0

    def _open(self, address, handle, flags):
        data = bytes(handle)
        address[0] = int.from_bytes(data[:8], "little")
        known = address[0] in self.pieces and data[8:] == b"\x00" + b"x" * 55
        return 0 if known and flags == 1 else 201

    def _copy(self, target, source, nbytes, queue):
        self.asked.append(queue)
        ctypes.memmove(target, source, nbytes)
        return 0

    def _name(self, error, text):
        text[0] = b"CUDA_ERROR_INVALID_CONTEXT" if error == 201 else None
        return 0


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    queue = SimpleNamespace(cuda_stream=QUEUE)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: queue)
    return found


def test_bytes_go_from_one_to_another_and_all_is_given_back(driver):
    one, other = CudaMemory(CPU), CudaMemory(CPU)
    address, handle = one.make(4096)
    sent, found = torch.rand(100), torch.zeros(100)
    one.copy(address + 64, sent.data_ptr(), sent.nbytes)
    other.copy(found.data_ptr(), other.open(handle) + 64, found.nbytes)
    assert torch.equal(sent, found) and driver.asked == [QUEUE, QUEUE]
    other.close()
    one.close()
    one.close()
    assert driver.asked[2:] == ["close"] and not driver.pieces


def test_torchs_cache_is_freed_before_a_ring_is_given_up(driver, monkeypatch):
    freed = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    driver.short = 1
    assert CudaMemory(CPU).make(64) is not None and len(freed) == 1
    driver.short = 2
    assert CudaMemory(CPU).make(64) is None


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        (b"short", "expected a handle of 64 bytes, found 5"),
        (bytes(64), r"cuIpcOpenMemHandle failed \(CUDA_ERROR_INVALID_CONTEXT\); use --set data_p"),
    ],
)
def test_handles_of_nothing(driver, handle, message):
    with pytest.raises(TransportError, match=message):
        CudaMemory(CPU).open(handle)


def test_a_machine_without_the_driver(monkeypatch):
    monkeypatch.setattr(peer_memory, "_DRIVER", "libcuda-that-is-not-there.so.1")
    with pytest.raises(TransportError, match=r"libcuda-that-is-not-there\.so\.1 cannot be used"):
        CudaMemory(CPU)
