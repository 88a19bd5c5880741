"""The layers, spaces, data, losses and teachers that a case names, in ordinary torch code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe import elastic
from scripts.compositions.cases import PALETTES, WIDTHS, Case, get

WIDTH, CLASSES, ROWS = 8, 5, 6
LR = 0.05
Factory = Callable[[], nn.Module]


class Noise(nn.Module):
    """Draws from torch's generator in its forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape."""
        return x + 0.1 * torch.randn_like(x)


class NumpyNoise(nn.Module):
    """Draws from NumPy's global generator in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape."""
        return self.linear(x) * float(np.random.uniform(0.9, 1.1))


class Absent(nn.Module):
    """Has a parameter that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape."""
        return torch.tanh(self.used(x))


class Added(nn.Module):
    """Its parameter's gradient is the one that goes back to the block before."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(0.1 * torch.randn(WIDTH))
        self.rows = nn.Parameter(0.1 * torch.randn(1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape."""
        return torch.cat([x + self.shift.view_as(self.shift), self.rows])[: len(x)]


class Twice(nn.Module):
    """Reads its input twice, so that two gradients meet there."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape."""
        return self.left(x) * self.right(x).sigmoid()


class Counting(nn.Module):
    """Its forward leaves something in a buffer, which the next one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape."""
        if self.training:
            self.seen += x.detach().mean()
        return self.linear(x) + 0.01 * self.seen


class Scaled(nn.Module):
    """Takes a field of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape; ``scale`` has one column."""
        return torch.tanh(self.linear(x)) * scale


LAYERS: Mapping[str, Factory] = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
    "batchnorm": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()),
    "layernorm": lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)),
    "dropout": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)),
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "noise": Noise,
    "numpy": NumpyNoise,
    "absent": Absent,
    "added": Added,
    "twice": Twice,
    "counting": Counting,
    "scaled": Scaled,
}


class Begins(nn.Module):
    """The first of a chain whose blocks hand on two tensors."""

    def __init__(self, make: Factory) -> None:
        super().__init__()
        self.layer = make()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer makes of the input, and the input."""
        return self.layer(x), x * 0.5


class Beside(nn.Module):
    """One in the middle of it: the second tensor takes part in the first."""

    def __init__(self, make: Factory) -> None:
        super().__init__()
        self.layer = make()

    def forward(
        self, x: torch.Tensor, side: torch.Tensor, *fields: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both tensors for the next block."""
        return self.layer(x, *fields) + 0.1 * side, side * 0.9


class Ends(nn.Module):
    """Its last one."""

    def __init__(self, make: Factory) -> None:
        super().__init__()
        self.layer = make()

    def forward(self, x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        """What the layer makes of their sum."""
        return self.layer(x + side)


def head(kind: str, outputs: int = CLASSES) -> nn.Module:
    """A chain's last layer."""
    if kind == "layernorm":
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs))
    return nn.Linear(WIDTH, outputs)


def elastic_layer() -> nn.Module:
    """A hidden layer of any width."""
    return elastic.Sequential(
        elastic.Linear(WIDTH, 6, outputs="hidden"),
        nn.Tanh(),
        elastic.Linear(6, WIDTH, inputs="hidden"),
    )


def space_of(case: Case) -> npp.Space:
    """The space that a case names."""
    pairs = get(case, "space.pairs")
    wrap: Any = Beside if pairs else lambda make: make()

    def layer(kind: str) -> Factory:
        return partial(wrap, LAYERS[kind])

    def rule(block: str) -> Any:
        return get(case, f"space.{block}_rule")

    stem = LAYERS[get(case, "space.stem")]
    palette = PALETTES[get(case, "space.palette")]
    blocks: list[Any] = [
        npp.Shared("stem", partial(Begins, stem) if pairs else stem, rule=rule("stem"))
    ]
    choices = npp.Block([layer(kind) for kind in palette], kind="same")
    for number in range(get(case, "space.blocks")):
        own = [layer(kind) for kind in palette]
        blocks.append(
            choices if get(case, "space.same") else npp.Block(own, kind=f"choice{number}")
        )
    if (step := get(case, "space.elastic")) != "none":
        how = {"step": "slice"} if step == "slice" else {}
        blocks.append(
            npp.Elastic("wide", elastic_layer, {"hidden": list(WIDTHS)}, rule("elastic"), **how)
        )
    if (kind := get(case, "space.middle")) != "none":
        fields = ("scale",) if kind == "scaled" else ()
        blocks.append(npp.Shared("middle", layer(kind), rule=rule("middle"), fields=fields))
    last = partial(head, get(case, "space.head"))
    blocks.append(npp.Shared("head", partial(Ends, last) if pairs else last, rule=rule("head")))
    return npp.Space("composed", blocks)


class Batches:
    """Data of a case: pure, with a field beside input and target, and now and then an infinity."""

    record: Mapping[str, Any] = {"name": "compositions"}
    batches_per_epoch = 5

    def __init__(self, case: Case, offset: int = 0) -> None:
        infinite = get(case, "infinite")
        self._infinite = {"never": (), "once": (2,), "first": (0, 3)}[infinite]
        self._varies = get(case, "rows") == "varying"
        self._offset = offset

    def __call__(self, seed: int, number: int) -> dict[str, torch.Tensor]:
        """The batch of a number."""
        draws = torch.Generator().manual_seed(seed * 1_000_003 + number + self._offset)
        rows = ROWS - number % 3 if self._varies else ROWS
        x = torch.randn(rows, WIDTH, generator=draws)
        if number in self._infinite:
            x[0, 0] = float("inf")
        return {
            "input": x,
            "target": torch.randint(0, CLASSES, (rows,), generator=draws),
            "scale": 0.5 + torch.rand(rows, 1, generator=draws),
            "weight": 0.5 + torch.rand(rows, generator=draws),
        }


class Weighted:
    """A loss over two fields of the batch."""

    fields = ("target", "weight")

    def __call__(
        self, output: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """The weighted mean."""
        losses = functional.cross_entropy(output, target, reduction="none")
        return (losses * weight).mean()


class Drawing:
    """A loss that draws behind the last block."""

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Cross entropy of noisy scores."""
        return functional.cross_entropy(output + 0.1 * torch.randn_like(output), target)


class OwnDistill:
    """A user's own: labels, and a field beside what the teacher says."""

    fields = ("target", "scale")

    def __call__(
        self, output: torch.Tensor, target: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        """Without a teacher."""
        return functional.cross_entropy(output, target) * scale.mean()

    def distill(
        self, output: torch.Tensor, taught: torch.Tensor, target: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        """With one."""
        return self(output, target, scale) + ((output - taught).square() * scale).mean()


class Follow:
    """What a student of a momentum teacher learns, pass by pass."""

    fields = ()
    needs_teacher = True

    def distill(self, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        """The loss of one pass."""
        return (output - taught).square().mean() + 0.01 * output.square().mean()


class Joint:
    """One loss over all passes of a step."""

    fields = ()
    needs_teacher = True

    def joined(
        self, outputs: Sequence[torch.Tensor], lessons: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Every output learns the teacher's similarities."""
        q = functional.normalize(torch.cat(list(outputs)), dim=-1)
        k = functional.normalize(torch.cat(list(lessons)), dim=-1)
        taught = (k @ k.T / 0.3).softmax(-1)[torch.arange(len(q)) % len(k)]
        return -(taught * (q @ k.T / 0.3).log_softmax(-1)).sum(-1).mean()


class Squares:
    """A block's own loss: what it learns of the teacher's block."""

    fields = ()

    def distill(self, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        """The loss of one pass."""
        return (output - taught).abs().mean()


def loss_of(case: Case) -> Any:
    """What naspipe is given; the plain loop is given the same."""
    smoothing = get(case, "recipe.label_smoothing")
    if case["family"] == "momentum":
        return Joint() if get(case, "momentum.loss") == "joint" else Follow()
    if case["family"] == "teacher":
        if get(case, "teacher.top"):
            return npp.losses.TopTarget(temperature=2.0, weight=0.5)
        return {
            "soft": npp.losses.SoftTarget(temperature=2.0, weight=0.5),
            "own": OwnDistill(),
            "labels": nn.CrossEntropyLoss(label_smoothing=smoothing),
        }[get(case, "teacher.loss")]
    kinds = {"weighted": Weighted, "drawing": Drawing}
    if (kind := get(case, "loss")) in kinds:
        return kinds[kind]()
    return nn.CrossEntropyLoss()


def trained_network(*kinds: str, outputs: int = CLASSES, seed: int = 5) -> list[nn.Module]:
    """Modules whose weights and statistics are of their own, the same each time."""
    torch.manual_seed(seed)
    modules = [*(LAYERS[kind]() for kind in kinds), nn.Linear(WIDTH, outputs)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # whoever makes them
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(20, WIDTH)
            for module in modules:
                x = module(x)
    torch.set_num_threads(threads)
    return modules


def teacher_modules() -> list[nn.Module]:
    """A frozen teacher's: dropout and batch normalisation show in which mode it is."""
    return trained_network("batchnorm", "dropout", "linear")


def shifted(samples: torch.Tensor, draws: torch.Generator, view: int) -> torch.Tensor:
    """One view of some samples."""
    return samples + (0.1 + 0.1 * view) * torch.randn(samples.shape, generator=draws)


def halved(samples: torch.Tensor, draws: torch.Generator, view: int) -> torch.Tensor:
    """A local view: fewer samples."""
    return shifted(samples, draws, view) * 0.5


PARAMETER_GROUPS: Mapping[str, list[dict[str, Any]]] = {
    "none": [],
    "bias": [{"match": "bias", "lr_factor": 0.5}],
    "head": [{"match": "head.*", "lr_factor": 2.0, "weight_decay": 0.01}],
    "several": [
        {"match": ["bias", "norm"], "weight_decay": 0.0, "lr_factor": 0.5},
        {"match": "stem.*", "lr_factor": 0.25},
    ],
}

OPTIONS: Mapping[str, dict[str, dict[str, Any]]] = {
    "none": {},
    "momentum": {"SGD": {"momentum": 0.9, "nesterov": True}, "RMSprop": {"momentum": 0.8}},
    "decay": {"SGD": {"momentum": 0.9, "weight_decay": 0.01}},
}


def optimizer_options(case: Case) -> dict[str, Any]:
    """Arguments of the optimizer that a case names."""
    kind, name = get(case, "optimizer_options"), get(case, "recipe.optimizer")
    others = {"decay": {"weight_decay": 0.01}}
    return dict(OPTIONS[kind].get(name, others.get(kind, {})))
