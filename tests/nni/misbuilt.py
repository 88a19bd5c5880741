"""Spaces whose constructors build another network when a choice is made: all are refused."""

from __future__ import annotations

import nni.nas.nn.pytorch as nas
import torch
from torch import nn

from tests.nni.filtered import WIDTH, Filtered, conv, maybe, simplified


class SmallSkip(nn.Sequential):
    """A sequence with a forward of its own, which NNI's model loses when it takes it apart."""

    def forward(self, x):
        return x + super().forward(x)


class LosesASkip(Filtered):
    def make_body(self):
        return simplified(
            nas.LayerChoice([SmallSkip(conv()), nn.Sequential(conv())], label="op"), conv()
        )


class LosesAnActivation(Filtered):
    """The filter drops what a choice may be, but not the choice."""

    def make_body(self):
        layers = (nas.LayerChoice([nn.ReLU(), conv()], label="op"), conv(3))
        return nn.Sequential(*[each for each in layers if not isinstance(each, nn.ReLU)])


class Replaced(Filtered):
    """A constructor that looks at what was chosen and builds something else behind it."""

    def make_body(self):
        op = maybe("op")
        behind = conv(3) if isinstance(op, nn.Identity) else conv(1)
        return nn.Sequential(op, behind)


class Dilated(Filtered):
    """The same shapes, and another setting."""

    def make_body(self):
        op = maybe("op", conv(3))
        far = 2 if isinstance(op, nn.Identity) else 1
        return nn.Sequential(op, nn.Conv2d(WIDTH, WIDTH, 3, padding=far, dilation=far))


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.conv, self.factor = conv(), factor

    def forward(self, x):
        return self.conv(x) * self.factor


class Rescaled(Filtered):
    """The same class and shapes; only what it computes tells that it is another one."""

    def make_body(self):
        op = maybe("op")
        return nn.Sequential(op, Scaled(2.0 if isinstance(op, nn.Identity) else 3.0))


class Stops(nn.Module):
    def __init__(self, stops):
        super().__init__()
        self.stops = stops

    def forward(self, x):
        return x.detach() if self.stops else x * 1


class Stopped(Filtered):
    """The same outputs; only gradients tell."""

    def make_body(self):
        op = maybe("op")
        return nn.Sequential(op, Stops(isinstance(op, nn.Identity)))


class Counts(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step = step
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += self.step
        return x * 1


class Counted(Filtered):
    """The same outputs and gradients; only a buffer tells."""

    def make_body(self):
        op = maybe("op")
        return nn.Sequential(op, Counts(1 + isinstance(op, nn.Identity)))


class Tied(Filtered):
    """Two layers, which are one in NNI's model."""

    def make_body(self):
        op, one = maybe("op"), conv()
        return nn.Sequential(one, op, one if isinstance(op, nn.Identity) else conv())


class Untied(Filtered):
    """One layer, which is two in NNI's model."""

    def make_body(self):
        op, one = maybe("op"), conv()
        return nn.Sequential(one, nn.ReLU(), conv() if isinstance(op, nn.Identity) else one, op)


class TiedWeights(Filtered):
    """Two weights, which are one in NNI's model."""

    def make_body(self):
        op, one, two = maybe("op"), conv(), conv()
        if isinstance(op, nn.Identity):
            two.weight = one.weight
        return nn.Sequential(one, op, two)


class UntiedWeights(Filtered):
    """One weight, which is two in NNI's model."""

    def make_body(self):
        op, one, two = maybe("op"), conv(), conv()
        if not isinstance(op, nn.Identity):
            two.weight = one.weight
        return nn.Sequential(one, nn.ReLU(), two, op)


class Swapped(Filtered):
    """The same modules in another order."""

    def make_body(self):
        op, others = maybe("op"), [nn.ReLU(), nn.Tanh()]
        return nn.Sequential(op, *(others[::-1] if isinstance(op, nn.Identity) else others))


class Body(nn.Module):
    """Two modules behind a choice; what the second reads depends on what was chosen."""

    def __init__(self):
        super().__init__()
        self.op = maybe("op")
        self.first, self.second = conv(), conv(3)
        self.is_plain = isinstance(self.op, nn.Identity)

    def forward(self, x):
        x = self.op(x)
        first = self.first(x)
        return first + self.second(x if self.is_plain else first)


class Rewired(Filtered):
    def make_body(self):
        return Body()


class Sized(nn.Module):
    """Reads a parameter itself, whose size depends on what was chosen."""

    def __init__(self):
        super().__init__()
        self.op = maybe("op")
        self.bias = nn.Parameter(
            torch.zeros(1 if isinstance(self.op, nn.Identity) else WIDTH, 1, 1)
        )

    def forward(self, x):
        return self.op(x) + self.bias


class Resized(Filtered):
    def make_body(self):
        return Sized()


class More(Filtered):
    """A module that only NNI's model has."""

    def make_body(self):
        op = maybe("op")
        return nn.Sequential(op, *([nn.ReLU()] if isinstance(op, nn.Identity) else []))


class Fewer(Filtered):
    """A module that NNI's model has not."""

    def make_body(self):
        op = maybe("op")
        return nn.Sequential(op, *([] if isinstance(op, nn.Identity) else [conv()]))


class Dead(Filtered):
    """A last module whose output nobody reads; its statistics are kept all the same."""

    def make_body(self):
        op = maybe("op")
        self.is_plain = isinstance(op, nn.Identity)
        self.watch = nn.BatchNorm2d(3)
        return op

    def forward(self, x):
        out = super().forward(x)
        if not self.is_plain:
            self.watch(x)
        return out


REFUSED_AT_ONCE = {
    LosesASkip: r"space LosesASkip, body\.0\.0: expected SmallSkip, found Conv2d at body\.0 in",
    LosesAnActivation: r"LosesAnActivation, body\.0\.0: expected ReLU, found Conv2d at body\.0",
    Replaced: r"space Replaced, body\.1: expected Conv2d, found Conv2d.*kernel_size=\(3, 3\)",
    Dilated: r"space Dilated, body\.1: expected Conv2d, found Conv2d.*dilation=\(2, 2\)",
    Tied: r"Tied, body\.2: Conv2d is one module there and several here, .* \(body\.0\)",
    Untied: r"Untied, body\.0: Conv2d is one module there and several here",
    Swapped: r"Swapped, body\.1: expected ReLU, found Tanh at body\.1",
    Rewired: r"Rewired, body\.second: its Conv2d reads other tensors than body\.second does",
    Resized: r"Resized: .*expected add\(.*body\.bias', 4, 1, 1.* found add\(.*body\.bias', 1, 1, 1",
    More: r"More: expected mean.*, found ReLU at body\.1",
    Dead: r"Dead: .* expected BatchNorm2d for every architecture, found nothing",
    Fewer: r"Fewer: .* expected Conv2d for every architecture, found mean",
}
"""By the forwards alone."""

REFUSED_BY_BITS = {
    Rescaled: "other bits in output 0 in evaluation mode",
    Stopped: r"gradient of (stem|body)",
    TiedWeights: r"one tensor of body\.2\.weight, which is two in the chain",
    UntiedWeights: r"two tensors of body\.2\.weight, which is one in the chain",
    Counted: r"other bits in body\.1\.seen after a forward",
}
