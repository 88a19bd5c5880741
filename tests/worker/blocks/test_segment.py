"""One block alone: what it looks at, and what it leaves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.config.rules import Exact, Lag
from naspipe.worker.blocks import segment
from naspipe.worker.blocks import specs as engine
from naspipe.worker.blocks.segment import Segment
from naspipe.worker.blocks.specs import SegmentSpec
from naspipe.worker.layers.bound_layer import BoundLayer


def of(module, rule, finish=None):
    spec = SegmentSpec(label="norm", rule=rule, seed=1, precision="fp32", finish=finish)
    layer = BoundLayer(module, module, dict(module.named_parameters()))
    inputs = (torch.arange(12.0).reshape(4, 3).requires_grad_(),)
    return Segment(spec, layer, inputs, keeps_graph=False)


@pytest.fixture
def compared(monkeypatch):
    """Buffers that are compared: on a GPU the stage waits for each."""
    usual, seen = segment.same_bits, []

    def same_bits(one, other):
        seen.append(one)
        return usual(one, other)

    monkeypatch.setattr(segment, "same_bits", same_bits)
    return seen


def test_statistics_of_batch_norm_are_kept_without_a_look(compared):
    norm = nn.BatchNorm1d(3)
    block = of(norm, Exact())
    (output,) = block.forward()
    once = norm.running_mean.clone()
    block.backward([torch.ones_like(output)])
    assert compared == [] and once.any()
    assert torch.equal(norm.running_mean, once), "computed again, they are as after the first time"


def test_statistics_of_later_passes_stay_when_a_forward_is_computed_again():
    """Another pass has used the layer between the forward and the backward of the first one."""
    norm = nn.BatchNorm1d(3)
    first, second = of(norm, Exact()), of(norm, Exact())
    (output,) = first.forward()
    second.forward()
    both = [buffer.clone() for buffer in norm.buffers()]
    first.backward([torch.ones_like(output)])
    assert norm.num_batches_tracked == 2
    assert all(map(torch.equal, norm.buffers(), both)), "the statistics of the second pass are lost"


class Counts(nn.Module):
    """A buffer of its own, beside one that stays."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.ones(3))

    def forward(self, x):
        self.count += 1
        return x * self.table * self.count


def test_other_buffers_are_compared(compared):
    module = Counts()
    block = of(module, Exact())
    (output,) = block.forward()
    assert len(compared) == 2 and len(list(block.kept)) == 2, "the input, and what was written"
    block.backward([torch.ones_like(output)])
    assert module.count == 1


def test_a_norm_that_may_not_write_is_found():
    with pytest.raises(Exception, match=r"writes the buffer running_mean, which rule lag\(3\)"):
        of(nn.BatchNorm1d(3), Lag(3)).forward()


class Breaks(torch.autograd.Function):
    """In its backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient")


class BreaksBehind(nn.Module):
    def forward(self, x):
        return Breaks.apply(x)


def test_what_raises_is_named():
    with pytest.raises(RuntimeError) as caught:
        of(nn.Linear(4, 2), Exact()).forward()
    assert caught.value.__notes__ == ["in layer norm (Linear), called with [4, 3]"]
    with pytest.raises(RuntimeError) as caught:
        of(nn.Linear(3, 2), Exact(), lambda outputs: (outputs[0] + torch.ones(5),)).forward()
    assert caught.value.__notes__ == ["in the loss, called with [4, 2]"]
    block = of(BreaksBehind(), Exact())
    (output,) = block.forward()
    with pytest.raises(ValueError, match="no gradient") as caught:
        block.backward([torch.ones_like(output)])
    assert caught.value.__notes__ == ["in the backward of layer norm (BreaksBehind)"]


def test_backwards_are_those_of_torch(monkeypatch):
    def gradients(backward):
        torch.manual_seed(1)
        leaf = torch.randn(3, 4, requires_grad=True)
        outputs = [leaf.exp(), (leaf * 2).sum(1)]
        backward([(each, torch.ones_like(each)) for each in outputs])
        with pytest.raises(RuntimeError, match="second time"):
            backward([(outputs[0], torch.ones_like(outputs[0]))])
        return leaf.grad

    def by_torch(roots):
        torch.autograd.backward([o for o, _ in roots], [g for _, g in roots])

    assert engine._ENGINE is not None
    assert torch.equal(gradients(engine.backward_from), gradients(by_torch))
    monkeypatch.setattr(engine, "_ENGINE", None)
    assert torch.equal(gradients(engine.backward_from), gradients(by_torch))


def test_a_subclass_of_tensors_keeps_its_own_backward():
    calls = []

    class Noted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, given=(), named=None):
            calls.append(function)
            return super().__torch_function__(function, types, given, named or {})

    leaf = torch.ones(2).as_subclass(Noted).requires_grad_()
    output = leaf * 2
    calls.clear()
    engine.backward_from([(output, torch.ones(2))])
    assert torch.autograd.backward in calls


class Twice(nn.Module):
    """Two parameters whose gradients torch leaves in the memory of the output's."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.zeros(12)) for _ in range(2))
        self.third = nn.Parameter(torch.zeros(4, 3))

    def forward(self, x):
        return x * (1 + self.third) + self.one.view(4, 3) + self.other.view(4, 3)


def test_a_parameters_gradient_is_in_memory_of_its_own():
    """Those of one layer share it, as in a plain loop, which may change both by one."""
    block = of(Twice(), Exact())
    block.forward()
    given = torch.ones(4, 3)
    (handed,) = block.backward([given])
    gradients = block.take_gradients()
    assert list(gradients) == ["one", "other", "third"]
    gradients["one"].mul_(2)
    assert given.eq(1).all() and handed.eq(1).all()
    assert gradients["other"].eq(2).all()


def test_a_sparse_gradient_is_in_memory_of_its_own():
    table = nn.Embedding(4, 3, sparse=True)
    spec = SegmentSpec(label="table", rule=Exact(), seed=1, precision="fp32")
    layer = BoundLayer(table, table, dict(table.named_parameters()))
    block = Segment(spec, layer, (torch.arange(4),), keeps_graph=False)
    block.forward()
    given = torch.ones(4, 3)
    block.backward([given])
    gradient = block.take_gradients()["weight"]
    assert gradient.is_sparse
    gradient._values().mul_(2)
    assert given.eq(1).all()
