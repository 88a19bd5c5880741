"""The C heap of a stage's process, kept from growing over a long run."""

from __future__ import annotations

import ctypes
from contextlib import suppress

LARGE_BYTES = 1 << 20
"""Blocks from here on get pages of their own, which go back to the machine with them."""

_M_MMAP_THRESHOLD = -3


def steady_heap() -> None:
    """Keep large short-lived tensors out of the heap; for the rest of the process.

    glibc takes them from the heap as soon as it has seen a few. Between them lie the small
    objects of layers that are moved, so fewer and fewer holes are large enough, and the heap grows
    by some percent over 2,000 subnets with what is in use staying the same. Other C libraries
    are left as they are. Costs about 5 % of the compute's speed on a CPU (`nlp.c1` tiny), and
    nothing where tensors are on a GPU.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
