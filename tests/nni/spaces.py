"""NNI's own spaces at sizes that train on a CPU in seconds, and a user's own."""

from __future__ import annotations

import warnings

import torch
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import nni
    import nni.nas.nn.pytorch as nas
    from nni.nas.hub.pytorch import (
        DARTS,
        ENAS,
        PNAS,
        AmoebaNet,
        AutoFormer,
        MobileNetV3Space,
        NasBench101,
        NasBench201,
        NASNet,
        ProxylessNAS,
        ShuffleNetSpace,
    )  # fmt: skip
    from nni.nas.hub.pytorch.nasnet import NDS


def proxyless():
    return ProxylessNAS(num_labels=10, base_widths=(8, 8, 8, 16, 16, 16, 24, 24, 32))


def shufflenet():
    return ShuffleNetSpace(num_labels=10)


def shufflenet_channels():
    """With a width of its own in every block: 32 layers each."""
    return ShuffleNetSpace(num_labels=10, channel_search=True)


def nasbench201():
    return NasBench201(stem_out_channels=4, num_modules_per_stack=2)


def autoformer():
    return AutoFormer(
        search_embed_dim=(16, 24), search_mlp_ratio=(1.0, 2.0), search_num_heads=(1, 2),
        search_depth=(1, 2, 3), img_size=32, patch_size=8, num_labels=10,
    )  # fmt: skip


def darts():
    return DARTS(width=4, num_cells=3, dataset="cifar")


def pnas():
    return PNAS(width=4, num_cells=3, dataset="cifar")


def nasnet():
    return NASNet(width=4, num_cells=3, dataset="cifar")


def enas():
    return ENAS(width=4, num_cells=3, dataset="cifar")


def amoebanet():
    return AmoebaNet(width=4, num_cells=3, dataset="cifar")


def nasbench101():
    return NasBench101(stem_out_channels=8, num_stacks=2, num_modules_per_stack=1)


def nds():
    """DARTS with fewer operations and nodes, two widths and two depths."""
    return NDS(
        ["skip_connect", "max_pool_3x3", "sep_conv_3x3"], num_nodes_per_cell=2, width=(4, 8),
        num_cells=(3, 4), dataset="cifar",
    )  # fmt: skip


def mobilenetv3():
    """With optional squeeze-and-excitation, which NNI's models have or have not."""
    return MobileNetV3Space(
        num_labels=10, base_widths=(8, 8, 8, 8, 16, 16), width_multipliers=1.0,
        expand_ratios=(1.0, 2.0), squeeze_excite=("none", "optional", "optional"),
        depth_range=(1, 2), stride=(2, 1, 2, 2, 1, 1),
        activation=("hswish", "relu", "relu", "hswish", "hswish", "hswish"),
    )  # fmt: skip


def mobilenetv3_wide():
    """As many stages as it has by default, of two widths."""
    return MobileNetV3Space(
        num_labels=10, base_widths=(8, 8, 8, 8, 8, 8, 8, 16, 16), width_multipliers=(1.0, 2.0),
        expand_ratios=(1.0, 2.0), depth_range=(1, 2),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, width, kernel):
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel, padding=kernel // 2)

    def forward(self, x):
        return x + self.conv(torch.relu(x))


class Own(nas.ModelSpace):
    """Every kind of choice: layers, inputs, depth, and a value local to a block."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.position = nn.Parameter(torch.randn(8, 1, 1))
        self.first = nas.LayerChoice({"a": Residual(8, 1), "b": Residual(8, 3)}, label="first")
        self.deep = nas.Repeat(
            lambda i: nn.Sequential(Residual(8, 1), nn.Tanh()), (0, 2), label="depth"
        )
        self.merge = nas.InputChoice(3, n_chosen=2, label="merge")
        width = nni.choice("width", [4, 6])
        self.narrow = nas.MutableConv2d(8, width, 1)
        self.wide = nas.MutableConv2d(width, 8, 1)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        batch = x.size(0)
        early = self.stem(x) + self.position
        x = self.first(early)
        later = torch.relu(self.deep(x))
        x = self.merge([early, x, later])
        x = self.wide(self.narrow(x))
        return self.head(x.mean((2, 3)).view(batch, -1))


MADE = {
    "proxyless": proxyless, "shufflenet": shufflenet, "nasbench201": nasbench201,
    "autoformer": autoformer, "darts": darts, "nds": nds, "own": Own, "mobilenetv3": mobilenetv3,
    "mobilenetv3_wide": mobilenetv3_wide,
    "shufflenet_channels": shufflenet_channels, "pnas": pnas,
    "nasnet": nasnet, "enas": enas, "amoebanet": amoebanet,
}  # fmt: skip


REFUSED = {"nasbench101": nasbench101}


def make(name):
    """The same weights every time."""
    torch.manual_seed(7)
    return MADE[name]()


def batches(seed, sequence_id, size=4):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(size, 3, 32, 32, generator=draw),
        "target": torch.randint(0, 10, (size,), generator=draw),
    }
