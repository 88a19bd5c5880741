"""One set of weights, many widths, kernels and depths: trained, searched, exported cut.

A kernel of 3 is made of the middle of the kernel of 5, as in Once-for-all (Cai et al. 2020)."""

from digits_parts import Digits
from torch import nn
from torch.nn.functional import conv2d

import naspipe as npp
from naspipe.elastic import Conv2d, Depth, Linear, Residual

WIDE, DEEP, KERNEL = {"width": [8, 16, 32]}, {"depth": [0, 1, 2]}, {"kernel": [3, 5]}
SAME = {"inputs": "width", "outputs": "width"}


def weight_of(mix, width, kernel):
    """The weight of a setting, which is an argument and nothing that the module keeps."""
    five, to_three = mix[0].weight[:width], mix[1]
    return five if kernel == 5 else to_three(five[..., 1:4, 1:4].flatten(2)).unflatten(2, (3, 3))


def apply_mix(mix, x, *, width, kernel):
    """What a setting computes."""
    weight = weight_of(mix, width, kernel)
    return conv2d(x, weight, mix[0].bias[:width], padding=kernel // 2, groups=width)


def cut_mix(mix, *, width, kernel):
    """The plain layer of a setting."""
    plain = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
    plain.weight = nn.Parameter(weight_of(mix, width, kernel).detach().clone())
    plain.bias = nn.Parameter(mix[0].bias[:width].detach().clone())
    return plain


space = npp.Space("widths", [
    npp.Elastic("stem", lambda: Conv2d(1, 32, 3, 2, outputs="width"), WIDE),
    npp.Elastic("mix", lambda: nn.Sequential(nn.Conv2d(32, 32, 5, groups=32), nn.Linear(9, 9)),
                WIDE | KERNEL, apply=apply_mix, cut=cut_mix),
    *(npp.Elastic(f"deep{n}", lambda n=n: Depth(Residual(
        nn.ReLU(), Conv2d(32, 32, 3, **SAME)), n), WIDE | DEEP) for n in range(2)),
    npp.Shared("pool", lambda: nn.Sequential(nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())),
    npp.Elastic("head", lambda: Linear(32, 10, inputs="width"), WIDE),
])  # fmt: skip


def main(run_dir="runs/widths", steps=300, stages=2, budget=20):
    """Train the largest, the smallest and two more of each step; search; export the best."""
    data, loss = npp.from_dataset(Digits(), batch_size=64), nn.CrossEntropyLoss()
    held_out = npp.from_dataset(Digits(held_out=True), batch_size=99, shuffle=False)
    how = {"optimizer": "Adam", "lr": 0.003, "stages": stages, "run_dir": run_dir}
    run = npp.train(space, data, loss, steps=steps, passes="sandwich:2", **how)
    small = {"held_out": held_out, "budget": budget, "limits": {"params": 8000}}
    best = npp.search_subnets(run, data, loss, **small).ranked()[0]
    return run, best, npp.export_subnet(run, best.choices, f"{run_dir}-best", data=data)


if __name__ == "__main__":
    run, best, _ = main()
    print(run.access_order("mix")[:60], best.scores.top1, best.cost.params)
