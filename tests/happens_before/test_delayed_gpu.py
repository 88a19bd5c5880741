"""The stand-in for a GPU: when queued work runs, and when memory is given out again."""

from __future__ import annotations

import pytest
import torch

from tests.happens_before.clocks import RaceError, Recorder, WrongBytesError
from tests.happens_before.torch_on_gpu import GPU, span_of, torch_on_gpu
from tests.happens_before.watched_layers import Part, launch_kernel


@pytest.fixture
def there():
    with torch_on_gpu(Recorder()) as torch_:
        yield torch_


def on_device(nbytes=600):
    return torch.empty(nbytes, dtype=torch.uint8, device=GPU)


def pinned(nbytes=600):
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def filled(there, tensor, byte):
    launch_kernel(there, f"fill with {byte}", [], [Part(span_of(tensor), byte)])


def has(there, tensor, byte):
    launch_kernel(there, f"look for {byte}", [Part(span_of(tensor), byte)], [])
    there.gpu.finish()


def test_tensors_say_where_they_are(there):
    assert on_device().device == GPU and on_device()[3:9].device == GPU
    assert pinned().device.type == torch.empty(3).device.type == "cpu"
    assert pinned().is_cpu and not on_device().is_cpu


def test_work_waits_until_it_is_waited_for(there):
    host, device = pinned(), on_device()
    filled(there, device, 5)
    host.copy_(device, non_blocking=True)
    assert set(bytes(host.numpy().data)) != {5}
    torch.cuda.current_stream(GPU).synchronize()
    assert set(bytes(host.numpy().data)) == {5}


def test_a_queue_that_waits_for_an_event_has_it_run(there):
    host, device, beside = pinned(), on_device(), torch.cuda.Stream(GPU)
    filled(there, device, 6)
    beside.wait_stream(torch.cuda.current_stream(GPU))
    filled(there, on_device(), 7)
    with torch.cuda.stream(beside):
        host.copy_(device, non_blocking=True)
    beside.synchronize()
    assert set(bytes(host.numpy().data)) == {6}
    assert there.gpu.queues[0].done < there.gpu.queues[0].launched


def test_a_queue_that_waits_for_nothing_races(there):
    host, device, beside = pinned(), on_device(), torch.cuda.Stream(GPU)
    filled(there, device, 6)
    with torch.cuda.stream(beside), pytest.raises(RaceError, match="fill with 6"):
        host.copy_(device, non_blocking=True)


def test_freed_memory_is_given_out_at_once_and_work_still_reads_it(there):
    first = on_device()
    filled(there, first, 1)
    address = first.data_ptr()
    del first
    second = on_device()
    assert second.data_ptr() == address
    filled(there, second, 2)
    has(there, second, 2)


def test_a_view_keeps_its_memory(there):
    first = on_device()
    view, address = first[512:].view(torch.uint8), first.data_ptr()
    del first
    assert on_device().data_ptr() != address
    assert view.data_ptr() == address + 512


def test_use_after_free_is_found(there):
    span = span_of(on_device())
    with pytest.raises(WrongBytesError, match="freed"):
        launch_kernel(there, "read", [Part(span, 1)], [])


def test_a_pinned_piece_is_given_out_again_behind_its_copies(there):
    first, device = pinned(), on_device()
    device.copy_(first, non_blocking=True)
    address = first.data_ptr()
    del first
    other = pinned()
    assert other.data_ptr() != address
    there.gpu.finish()
    assert pinned().data_ptr() == address


def test_pageable_memory_is_copied_while_the_host_waits(there):
    host, device = torch.full((600,), 9, dtype=torch.uint8), on_device()
    device.copy_(host, non_blocking=True)
    host.fill_(8)
    has(there, device, 9)
    back = torch.empty(600, dtype=torch.uint8).copy_(device, non_blocking=True)
    assert set(bytes(back.numpy().data)) == {9}


def test_what_is_not_taken_over_is_refused(there):
    with pytest.raises(NotImplementedError, match="add"):
        on_device().add_(1)


def test_what_a_kernel_does_not_find_is_told(there):
    device = on_device()
    filled(there, device, 3)
    with pytest.raises(WrongBytesError, match="look for 4"):
        has(there, device, 4)
