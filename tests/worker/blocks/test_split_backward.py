"""A backward in two parts: which gradients wait, and that the bits are those of a whole one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from naspipe.config.rules import Exact, Lag
from naspipe.worker.blocks import split_backward
from naspipe.worker.blocks.segment import Segment
from naspipe.worker.blocks.specs import SegmentSpec
from naspipe.worker.blocks.split_backward import SplitBackward
from naspipe.worker.layers.bound_layer import BoundLayer

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH = 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


class Feedforward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(WIDTH), nn.Parameter(torch.ones(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return x + self.scale * self.drop(self.down(self.up(self.norm(x)).relu()))


class Separable(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.point, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.point(self.depth(x.relu())))


class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.twice, self.once = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.once(self.twice(self.twice(x).relu()))


class Normalised(nn.Module):
    """The weight is computed of two parameters."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.linear(x)


class Two(nn.Module):
    """Two tensors come in, and two go out."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, y):
        return self.left(x) + y, self.right(y)


def texts():
    return (torch.randn(3, 5, WIDTH),)


CASES = {
    "attention": (Attention, texts, {"attention.in_proj_weight", "attention.out_proj.weight"}),
    "feedforward": (Feedforward, texts, {"up.weight", "down.weight"}),
    "separable": (
        Separable, lambda: (torch.randn(3, 4, 6, 6),),
        {"depth.weight", "depth.bias", "point.weight", "point.bias"},
    ),
    "weight norm": (
        Normalised, texts,
        {f"linear.parametrizations.weight.original{n}" for n in range(2)},
    ),
    "used twice": (UsedTwice, texts, {"once.weight"}),
    "two inputs": (Two, lambda: (*texts(), *texts()), {"left.weight", "right.weight"}),
}  # fmt: skip


def segment(module, inputs, *, wants=True, rule=None, recompute=False, precision="fp32"):
    spec = SegmentSpec("it", rule or Exact(), seed=3, precision=precision)
    parameters = dict(module.named_parameters())
    version = None
    if rule is not None:
        version = [(each, each.detach() + 1) for each in parameters.values()]
    layer = BoundLayer(module, module, parameters, version=version)
    leaves = tuple(each.clone().requires_grad_(wants) for each in inputs)
    return Segment(spec, layer, leaves, keeps_graph=not recompute)


def gradients(module, inputs, split=None, **how):
    """Of the inputs, of the parameters that are there at once, and of those that are owed."""
    made = segment(module, inputs, **how)
    torch.manual_seed(5)
    found = made.backward([torch.randn_like(each) for each in made.forward()], split)
    return found, made.take_gradients(), made.owed.compute() if made.owed else {}


def assert_alike(whole, parts):
    (inputs, own, _), (found, early, late) = whole, parts
    assert all(torch.equal(a, b) for a, b in zip(inputs, found, strict=True) if a is not None)
    both = {**early, **late}
    assert both.keys() == own.keys()
    for name, gradient in own.items():
        assert gradient.stride() == both[name].stride()
        assert torch.equal(gradient, both[name]), name


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["kept", "recompute", "lag", "bf16"])
def test_the_bits_are_those_of_a_whole_backward(name, how):
    made, data, late = CASES[name]
    torch.manual_seed(0)
    module, inputs, split = made(), data(), SplitBackward()
    more = {
        "kept": {}, "recompute": {"recompute": True}, "lag": {"rule": Lag(1)},
        "bf16": {"precision": "bf16"},
    }[how]  # fmt: skip
    if how == "lag" and name == "separable":
        module.norm = nn.Identity()  # its statistics are no matter of a rule but exact
    whole = gradients(module, inputs, **more)
    first = gradients(module, inputs, split, **more)
    assert split.why_whole == "" and first[2] == {}, "the first backward runs whole, too"
    second = gradients(module, inputs, split, **more)
    assert set(second[2]) == late
    for parts in (first, second):
        assert_alike(whole, parts)


def test_a_block_whose_inputs_want_nothing_owes_all_of_its_backward():
    module, inputs, split = Feedforward(), texts(), SplitBackward()
    whole = gradients(module, inputs, wants=False)
    found, early, late = gradients(module, inputs, split, wants=False)
    assert early == {} and found == (None,)
    assert_alike(whole, (found, early, late))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Own(nn.Linear):
    def forward(self, x):
        return Square.apply(super().forward(x))


def with_hook():
    module = nn.Linear(WIDTH, WIDTH)
    module.weight.register_hook(lambda gradient: gradient * 2)
    return module


def with_late_hook():
    module = nn.Linear(WIDTH, WIDTH)
    module.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return module


def with_module_hook():
    module = nn.Linear(WIDTH, WIDTH)
    module.register_full_backward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: Own(WIDTH, WIDTH), "function of its own"),
        (with_module_hook, "backward hook"),
        (with_hook, "parameter has a hook"),
        (with_late_hook, "parameter has a hook"),
        (lambda: nn.LayerNorm(WIDTH), "no weight"),
    ],
)
def test_what_cannot_be_split_stays_whole_and_says_why(made, why):
    module, inputs, split = made(), texts(), SplitBackward()
    whole = gradients(module, inputs)
    for _ in range(2):
        found, early, late = gradients(module, inputs, split)
        assert late == {} and why in split.why_whole
        assert_alike(whole, (found, early, late))


class Hooked(nn.Module):
    """From some forward on, it does something with a tensor between its two linear layers."""

    def __init__(self, since, hook):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))
        self.since, self.hook, self.listed, self.forwards = since, hook, [], 0

    def count(self, *_):
        self.calls += 1
        self.listed.append(1)

    def forward(self, x):
        y = self.first(x)
        if self.forwards >= self.since:
            self.hook(self, y)
        self.forwards += 1
        return self.second(y.relu())


HOOKS = {
    "tensor": (lambda self, y: y.register_hook(self.count), "puts a hook on a tensor"),
    "several tensors": (
        lambda self, y: torch.autograd.graph.register_multi_grad_hook((y,), self.count),
        "puts a hook on a tensor",
    ),
    "parameter": (
        lambda self, y: self.listed or self.first.weight.register_hook(self.count),
        "puts a hook on a tensor",
    ),
}


@pytest.mark.parametrize("since", [0, 1, 3])
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("wants", [True, False])
def test_a_hook_that_a_forward_puts_on_a_tensor_is_called_once_for_each_pass(since, name, wants):
    hook, why = HOOKS[name]
    modules = [Hooked(since, hook) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    split, inputs = SplitBackward(), texts()
    for number in range(5):
        whole = gradients(modules[0], inputs, wants=wants)
        parts = gradients(modules[1], inputs, split, wants=wants)
        assert_alike(whole, parts)
        if wants:
            assert (why in split.why_whole) == (number >= since)
            assert bool(parts[2]) == (0 < number < since)
    assert len(modules[1].listed) == len(modules[0].listed) == 5 - since
    assert torch.equal(modules[1].calls, modules[0].calls)


def test_a_hook_of_the_loss_counts_as_one_of_the_forward():
    module, inputs, split, calls = Feedforward(), texts(), SplitBackward(), []

    def loss(outputs):
        outputs[0].register_hook(calls.append)
        return (outputs[0].sum(),)

    for number in range(3):
        made = segment(module, inputs)
        made._spec = made._spec._replace(finish=loss)
        made.backward([torch.ones_like(each) for each in made.forward()], split)
        assert made.owed is None and len(calls) == number + 1
    assert split.why_whole == "its forward puts a hook on a tensor"


def test_a_gradient_that_a_forward_has_kept_is_not_added_up():
    kept = []

    def keep(self, y):
        y.retain_grad()
        kept.append(y)

    module, inputs, split = Hooked(0, keep), texts(), SplitBackward()
    gradients(module, inputs)
    for _ in range(2):
        gradients(module, inputs, split)
    assert all(torch.equal(each.grad, kept[0].grad) for each in kept)
    assert split.why_whole == "its forward keeps the gradient of a tensor"


class Checkpointed(nn.Module):
    def __init__(self, since):
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(5)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.since, self.forwards, self.computed = since, 0, 0

    def part(self, x):
        self.computed += 1
        return self.norm(self.first(x)).relu()

    def forward(self, x):
        self.forwards += 1
        if self.forwards <= self.since:
            return self.last(self.part(x))
        return self.last(checkpoint(self.part, x, use_reentrant=False))


@pytest.mark.parametrize("since", [0, 2])
@pytest.mark.parametrize("wants", [True, False])
def test_a_checkpoint_is_recomputed_once_for_each_pass(since, wants):
    modules = [Checkpointed(since) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    split, inputs = SplitBackward(), texts()
    for _ in range(4):
        whole = gradients(modules[0], inputs, wants=wants)
        assert_alike(whole, gradients(modules[1], inputs, split, wants=wants))
    assert modules[1].computed == modules[0].computed == 8 - since
    for one, other in zip(modules[0].buffers(), modules[1].buffers(), strict=True):
        assert torch.equal(one, other)
    assert ("as checkpoints do" in split.why_whole) == wants


def test_hooks_of_others_are_none_of_the_forward():
    module, inputs, split = Feedforward(), texts(), SplitBackward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        gradients(module, inputs, split)
    made = segment(module, inputs)
    outputs = made.forward()
    torch.ones(1, requires_grad=True).register_hook(lambda _: None)
    made.backward([torch.randn_like(each) for each in outputs], split)
    assert split.why_whole == "" and made.owed is not None


def test_a_candidate_whose_backward_changes_a_buffer_stays_whole():
    """Hooks on nodes are not seen, but what they do to buffers is."""
    modules = [Hooked(0, lambda self, y: y.grad_fn.register_hook(self.count)) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    split, inputs = SplitBackward(), texts()
    for number in range(3):
        assert_alike(gradients(modules[0], inputs), gradients(modules[1], inputs, split))
        assert len(modules[1].listed) == number + 1
    assert split.why_whole == "its backward changes the buffer calls"
    assert torch.equal(modules[1].calls, modules[0].calls)


def test_a_candidate_with_other_bits_stays_whole(monkeypatch):
    kept = split_backward._keep
    monkeypatch.setattr(
        split_backward, "_keep",
        lambda own, number, given: kept(own, number, tuple(each * 3 for each in given)),
    )  # fmt: skip
    module, inputs, split = nn.Linear(WIDTH, WIDTH), texts(), SplitBackward()
    whole = gradients(module, inputs)
    assert_alike(whole, gradients(module, inputs, split))
    assert split.why_whole == "the gradient of weight has other bits"
    assert_alike(whole, gradients(module, inputs, split))


class Deciding(nn.Module):
    """What it computes depends on its input."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        first = x.detach()[0, 0, 0]
        if first > 0:
            return self.other(self.one(x))
        if first > -3:
            return self.one(self.other(x))
        return self.one(self.one(self.other(x)))


def test_passes_whose_graph_is_another_one_have_their_own_bits():
    torch.manual_seed(0)
    module, split = Deciding(), SplitBackward()
    usual, swapped, longer = (torch.ones(1, 2, WIDTH) * scale for scale in (1, -2, -5))
    gradients(module, (usual,), split)
    for inputs, owes in ((usual, True), (swapped, False), (longer, False)):
        whole = gradients(module, (inputs,))
        parts = gradients(module, (inputs,), split)
        assert bool(parts[2]) == owes
        assert_alike(whole, parts)


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        return self.linear(x) + y


def test_what_is_handed_on_may_be_changed_in_place_before_the_owed_gradients_are_computed():
    """The gradient of the second input is the very tensor that arrives at the linear layer."""
    module, inputs, split = Added(), (*texts(), *texts()), SplitBackward()
    whole = gradients(module, inputs)
    gradients(module, inputs, split)
    made = segment(module, inputs)
    torch.manual_seed(5)
    found = made.backward([torch.randn_like(each) for each in made.forward()], split)
    early, inputs_found = made.take_gradients(), [each.clone() for each in found]
    for each in found:
        each.zero_()  # as an autograd function of the block before may do
    assert_alike(whole, (inputs_found, early, made.owed.compute()))


def test_each_join_has_a_call_of_its_own():
    """In one call, what is behind two joins would be counted twice."""
    module, inputs, split = Feedforward(), texts(), SplitBackward()
    whole = gradients(module, inputs)
    gradients(module, inputs, split)
    made = segment(module, inputs)
    torch.manual_seed(5)
    made.backward([torch.randn_like(each) for each in made.forward()], split)
    roots = [root for piece in made.owed.pieces for root in piece.roots]
    parameters = [each for piece in made.owed.pieces for each in piece.parameters.values()]
    split_backward.backward_from(roots, parameters, keeps_graph=True)
    assert not torch.equal(module.up.weight.grad, whole[1]["up.weight"])


@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_second_try_where_memory_was_short(has_kernels, monkeypatch):
    if not has_kernels:
        monkeypatch.setattr(split_backward, "kernel_of", lambda *_: None)
    module, inputs, split = Feedforward(), texts(), SplitBackward()
    whole = gradients(module, inputs)
    gradients(module, inputs, split)
    made = segment(module, inputs)
    torch.manual_seed(5)
    found = made.backward([torch.randn_like(each) for each in made.forward()], split)
    early, by_kernel, calls = made.take_gradients(), split_backward._Piece.by_kernel, []

    def short(piece):
        calls.append(piece)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("short")
        return by_kernel(piece)

    monkeypatch.setattr(split_backward._Piece, "by_kernel", short)
    with pytest.raises(torch.OutOfMemoryError):
        made.owed.compute()
    assert_alike(whole, (found, early, made.owed.compute()))


def engine_calls(module, inputs, split, monkeypatch):
    """How often the engine is called for what is owed of a second pass, and the gradients."""
    gradients(module, inputs, split)
    made, calls = segment(module, inputs), []
    torch.manual_seed(5)
    found = made.backward([torch.randn_like(each) for each in made.forward()], split)
    early, usual = made.take_gradients(), split_backward.backward_from
    with monkeypatch.context() as patch:
        patch.setattr(
            split_backward, "backward_from",
            lambda *given, **more: calls.append(usual(*given, **more)),
        )  # fmt: skip
        late = made.owed.compute()
    return len(calls), (found, early, late)


class Product(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.randn(WIDTH, WIDTH)), factor

    def forward(self, x):
        rows = x.flatten(0, 1)
        return torch.addmm(torch.zeros(()), rows, self.weight, alpha=self.factor)


@pytest.mark.parametrize(
    ("made", "data", "calls"),
    [
        (Feedforward, texts, 0),
        (Product, texts, 0),
        (lambda: Product(2.0), texts, 1),
        (Separable, CASES["separable"][1], 0),
        (lambda: nn.Conv2d(4, 4, 3, bias=False), CASES["separable"][1], 0),
        (Normalised, texts, 1),
    ],
)
def test_products_and_convolutions_need_no_engine(made, data, calls, monkeypatch):
    torch.manual_seed(0)
    module, inputs, split = made(), data(), SplitBackward()
    whole = gradients(module, inputs)
    found, parts = engine_calls(module, inputs, split, monkeypatch)
    assert split.why_whole == ""
    assert found == calls
    assert_alike(whole, parts)


def test_a_kernel_that_leaves_other_bits_is_not_used(monkeypatch):
    monkeypatch.setattr(
        split_backward, "_transposed_factor", lambda node, gradient: (gradient.t() @ gradient,)
    )
    module, inputs, split = nn.Linear(WIDTH, WIDTH), texts(), SplitBackward()
    whole = gradients(module, inputs)
    calls, parts = engine_calls(module, inputs, split, monkeypatch)
    assert split.why_whole == ""
    assert calls == 1
    assert_alike(whole, parts)


class Between(nn.Module):
    """A weight with an operation between it and the product that is nothing in the first pass."""

    def __init__(self, operation):
        super().__init__()
        self.weight, self.operation = nn.Parameter(torch.full((WIDTH, WIDTH), 0.5)), operation

    def forward(self, x):
        return nn.functional.linear(x, self.operation(self.weight))


class LeftFactor(nn.Module):
    """Its gradient is zero in the first pass, so any formula agrees with it."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(WIDTH, WIDTH)), 0.0

    def forward(self, x):
        return torch.mm(self.weight, x.flatten(0, 1)[:WIDTH].t()) * self.scale


@pytest.mark.parametrize(
    "operation",
    [lambda weight: weight.clamp(-1, 1), lambda weight: weight.t(), lambda weight: weight * mask],
    ids=["clamp", "transposed", "mask"],
)
def test_what_is_between_a_weight_and_its_product_counts(operation):
    """The first pass leaves the same bits with a kernel that knows nothing of it."""
    mask.fill_(1.0)
    module, inputs, split = Between(operation), texts(), SplitBackward()
    gradients(module, inputs, split)
    mask.fill_(0.5)
    with torch.no_grad():
        module.weight.copy_(torch.randn(WIDTH, WIDTH) * 2)
    assert_alike(gradients(module, inputs), gradients(module, inputs, split))


mask = torch.ones(WIDTH, WIDTH)


def test_the_left_factor_of_a_product():
    module, inputs, split = LeftFactor(), texts(), SplitBackward()
    gradients(module, inputs, split)
    module.scale = 1.0
    assert_alike(gradients(module, inputs), gradients(module, inputs, split))


def test_gradients_have_the_strides_of_their_parameters(monkeypatch):
    """Where a kernel leaves others in a later pass, the engine is called."""
    module, inputs, split = nn.Linear(WIDTH, WIDTH), texts(), SplitBackward()
    whole = gradients(module, inputs)
    gradients(module, inputs, split)
    usual = torch.Tensor.mm
    monkeypatch.setattr(
        torch.Tensor, "mm", lambda one, other: usual(one, other).t().contiguous().t()
    )
    assert_alike(whole, gradients(module, inputs, split))


def test_complex_numbers_are_left_to_the_engine():
    module = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.complex64)
    real, split = torch.randn(3, WIDTH).to(torch.complex64), SplitBackward()
    gradients(module, (real,), split)
    inputs = (torch.randn(3, WIDTH, dtype=torch.complex64),)
    assert_alike(gradients(module, inputs), gradients(module, inputs, split))


def test_a_factor_of_one_pass_is_seen():
    """The graph of a product does not tell by which number it was multiplied."""
    module, inputs, split = Product(), texts(), SplitBackward()
    gradients(module, inputs, split)
    module.factor = 2.0
    whole = gradients(module, inputs)
    assert_alike(whole, gradients(module, inputs, split))
