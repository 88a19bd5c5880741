"""Computing with several threads in a forked process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

import torch

T = TypeVar("T")


def in_own_thread(threads: int, work: Callable[[], T]) -> T:
    """Call what computes with so many intra-op threads, in a process that was forked.

    OpenMP keeps the threads that help a thread with that one. Where the parent has computed, too,
    the only thread of a forked process has helpers that stayed in the parent, and waits for them
    forever. A new thread gets new ones. One that computes alone needs none, and none is made; what
    it calls computes alone, too, also where it is the user's.

    Raises:
        BaseException: whatever the work raises.
    """
    if threads == 1:
        torch.set_num_threads(1)
        return work()
    results: list[T] = []
    failures: list[BaseException] = []

    def call() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised where it is waited for
            failures.append(error)

    thread = threading.Thread(target=copy_context().run, args=(call,), name="naspipe-compute")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


@contextmanager
def without_helpers() -> Iterator[None]:
    """Inside, what computes does so in its own thread alone: in a process that may have been forked
    from one that has computed, helpers would be waited for forever. Restored after.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
