"""torch, as if it had a GPU: tensors in its memory, and copies that wait in its queues.

A tensor is on the GPU when its address is in :data:`~tests.happens_before.gpu_memory.DEVICE`. The
functions that move bytes are taken over, those that only look at a tensor are left alone, and any
other one that is called with memory of the GPU is an error of these tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import memmove
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from tests.happens_before.clocks import Recorder
from tests.happens_before.delayed_gpu import DelayedGpu
from tests.happens_before.gpu_memory import DEVICE, PINNED, DeviceMemory, PinnedMemory, Span

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
_Tensor = torch.Tensor

_LOOKS = {
    *(getattr(_Tensor, name) for name in (
        "data_ptr", "numel", "dim", "narrow", "view", "as_strided", "storage_offset", "stride",
        "set_", "untyped_storage", "detach", "requires_grad_", "is_conj", "is_neg", "reshape",
        "is_contiguous", "__getitem__", "__len__", "is_floating_point", "is_complex", "size",
        "__hash__",
    )),
    *(getattr(_Tensor, name).__get__ for name in (
        "dtype", "shape", "layout", "itemsize", "nbytes", "data", "requires_grad", "grad",
        "is_leaf", "ndim", "grad_fn",
    )),
    _Tensor.data.__set__, _Tensor.grad.__set__, _Tensor.requires_grad.__set__,
}  # fmt: skip
"""What only looks at a tensor, or gives it another memory."""


def span_of(tensor: torch.Tensor) -> Span:
    """The bytes of a tensor without gaps."""
    assert tensor.is_contiguous(), "only tensors without gaps are in these tests"
    return Span(tensor.data_ptr(), tensor.nbytes)


class TorchOnGpu(TorchFunctionMode):
    """Carries out what torch is asked for; on while it is entered.

    Args:
        recorder: told of every access to memory of the GPU, and to pinned memory.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.gpu = DelayedGpu(recorder)
        self.device_memory = DeviceMemory(self.gpu)
        self.pinned_memory = PinnedMemory(recorder)
        self.watched: list[tuple[int, int]] = [(PINNED.start, PINNED.end)]
        """Address ranges in host memory whose accesses are told."""
        self._taken_over: dict[Any, Callable[..., Any]] = {
            _Tensor.device.__get__: self._device,
            _Tensor.is_cpu.__get__: lambda tensor: not self.is_there(tensor),
            _Tensor.is_cuda.__get__: self.is_there,
            _Tensor.is_pinned: lambda tensor: tensor.data_ptr() in PINNED,
            _Tensor.copy_: self._copy,
            _Tensor.clone: self._clone,
            _Tensor.cpu: lambda tensor: self._to(tensor, HOST),
            _Tensor.to: self._to,
            _Tensor.numpy: self._numpy,
            torch.empty: self._empty,
            torch._C._nn.flatten_dense_tensors: self._flatten,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOOKS:
            return func(*args, **kwargs or {})
        take_over = self._taken_over.get(func)
        if take_over is not None:
            return take_over(*args, **kwargs or {})
        for each in args:
            if isinstance(each, _Tensor) and (self.is_there(each) or each.data_ptr() in PINNED):
                raise NotImplementedError(f"{func} with memory of the GPU, or pinned memory")
        return func(*args, **kwargs or {})

    @staticmethod
    def is_there(tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the GPU."""
        return tensor.data_ptr() in DEVICE

    def launch(
        self, what: str, reads: list[Span], writes: list[Span], run: Callable[[], None]
    ) -> None:
        """Queue work in the current queue; its memory has to be there."""
        for span in (*reads, *writes):
            if span.address in DEVICE:
                self.device_memory.check(what, span)
        self.gpu.current_queue().launch(what, reads, writes, run)

    def touch(self, span: Span, writes: bool, what: str) -> None:
        """The running thread reads or writes host memory."""
        address, nbytes = span
        if nbytes and any(start <= address < end for start, end in self.watched):
            acting = self.recorder.acting
            self.recorder.access(acting, address, address + nbytes, writes, what)

    def _device(self, tensor: torch.Tensor) -> torch.device:
        return GPU if self.is_there(tensor) else tensor.device

    def _empty(self, *size: Any, device: Any = None, pin_memory: bool = False, **rest: Any) -> Any:
        nbytes = size[0] if len(size) == 1 and isinstance(size[0], int) else 0
        if not nbytes or not (pin_memory or (device is not None and device.type == "cuda")):
            is_there = device is not None and device.type == "cuda"
            return torch.empty(*size, device=HOST if is_there else device, **rest)
        assert rest == {"dtype": torch.uint8}
        memory = self.pinned_memory if pin_memory else self.device_memory
        return memory.allocate(nbytes)

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        if not target.numel():
            return target
        assert target.dtype == source.dtype and target.shape == source.shape
        is_there, was_there = self.is_there(target), self.is_there(source)
        if not is_there and not was_there:
            self.touch(span_of(source), False, "copy in host memory")
            self.touch(span_of(target), True, "copy in host memory")
            return target.copy_(source)
        there, host = (target, source) if is_there else (source, target)
        to, of = span_of(target), span_of(source)
        if is_there and was_there:
            self.launch("copy on the device", [of], [to], partial(memmove, to[0], *of))
        elif host.data_ptr() not in PINNED:
            self._copy_pageable(there, host, is_there, non_blocking)
        else:
            way = "copy to the device" if is_there else "copy to pinned memory"
            self.launch(way, [of], [to], partial(memmove, to[0], *of))
            if non_blocking:
                self.pinned_memory.used_by(span_of(host), self.gpu.current_queue())
            else:
                self.gpu.current_queue().synchronize()
        return target

    def _copy_pageable(
        self, there: torch.Tensor, host: torch.Tensor, is_in: bool, non_blocking: bool
    ) -> None:
        """The driver copies pageable memory at once, through pinned memory of its own."""
        span, queue = span_of(there), self.gpu.current_queue()
        if is_in:
            data = bytes(host.detach().reshape(-1).view(torch.uint8).numpy())
            run = partial(memmove, span.address, data, span.nbytes)
            self.launch("copy of pageable memory", [], [span], run)
            if not non_blocking:
                queue.synchronize()
            return
        run = partial(memmove, host.data_ptr(), *span)
        self.launch("copy to pageable memory", [span], [], run)
        queue.synchronize()

    def _clone(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.is_there(tensor):
            self.touch(span_of(tensor), False, "clone")
            return tensor.clone()
        return self._copy(self._like(tensor), tensor.detach())

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        memory = self.device_memory.allocate(tensor.nbytes)
        return memory.view(tensor.dtype).view(tensor.shape)

    def _to(self, tensor: torch.Tensor, device: torch.device, **rest: Any) -> torch.Tensor:
        assert isinstance(device, torch.device) and not rest
        if self._device(tensor) == device:
            return tensor
        plain = tensor.detach()
        target = self._like(plain) if device.type == "cuda" else torch.empty_like(plain)
        return self._copy(target, plain)

    def _numpy(self, tensor: torch.Tensor) -> Any:
        assert not self.is_there(tensor), "memory of the GPU is no array"
        return tensor.numpy()

    def _flatten(self, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        spans = [span_of(each) for each in tensors]
        if not self.is_there(tensors[0]):
            for span in spans:
                self.touch(span, False, "capture of host memory")
            return torch._C._nn.flatten_dense_tensors(tensors)
        nbytes = sum(span.nbytes for span in spans)
        flat = self.device_memory.allocate(nbytes)

        def run() -> None:
            end = target.address
            for address, size in spans:
                memmove(end, address, size)
                end += size

        target = span_of(flat)
        self.launch("capture on the device", spans, [target], run)
        return flat.view(tensors[0].dtype)


@contextmanager
def torch_on_gpu(recorder: Recorder) -> Iterator[TorchOnGpu]:
    """torch with a GPU, also in ``torch.cuda``."""
    torch_ = TorchOnGpu(recorder)
    gpu = torch_.gpu

    def resize(storage: torch.UntypedStorage, nbytes: int) -> None:
        torch_.device_memory.resize(storage, nbytes)

    with (
        patch.object(torch.UntypedStorage, "resize_", resize),
        patch.multiple(
            torch.cuda,
            Stream=gpu.open_queue,
            Event=gpu.make_event,
            stream=gpu.using,
            current_stream=gpu.current_queue,
            is_available=lambda: True,
            set_device=lambda device: None,
            get_device_properties=lambda device: SimpleNamespace(total_memory=1 << 20),
        ),
        torch_,
    ):
        yield torch_
