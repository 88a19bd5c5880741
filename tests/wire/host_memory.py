"""In place of a GPU's memory: host memory that other processes open, and that has no name."""

from __future__ import annotations

import mmap
import os
from ctypes import memmove

import numpy as np

from naspipe.config.errors import TransportError


class HostMemory:
    """See :class:`naspipe.wire.device_rings.CudaMemory`; a handle is ``process:descriptor``."""

    def __init__(self, device):
        self._pieces = []
        self._descriptors = []

    def make(self, nbytes):
        descriptor = os.memfd_create("naspipe-ring")
        os.ftruncate(descriptor, nbytes)
        self._descriptors.append(descriptor)
        return self._mapped(descriptor), f"{os.getpid()}:{descriptor}".encode()

    def open(self, handle):
        process, number = map(int, handle.split(b":"))
        try:
            descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
        except OSError as error:
            raise TransportError(f"process {process} has no such memory: {error}") from error
        self._descriptors.append(descriptor)
        return self._mapped(descriptor)

    def copy(self, target, source, nbytes):
        memmove(target, source, nbytes)

    def mark(self):
        return None

    def close(self):
        self._pieces.clear()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _mapped(self, descriptor):
        self._pieces.append(np.frombuffer(mmap.mmap(descriptor, 0), np.uint8))
        return self._pieces[-1].ctypes.data
