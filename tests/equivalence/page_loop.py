"""What plain loops written from docs/reproducibility.md alone have in common, and its Python.

Nothing of naspipe is used, and nothing of the other plain loops of these tests.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch

PAGE = Path(__file__).parents[2] / "docs" / "reproducibility.md"


def blocks_of_the_page():
    """What its blocks of Python define."""
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S):
        exec(compile(code, PAGE.name, "exec"), names)
    return SimpleNamespace(**names)


page = blocks_of_the_page()


@contextmanager
def settings():
    """What torch is told before the first layer is made."""
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])


class Loop:
    """Layers, their optimizers and all losses; ``labels`` are those of choice blocks and layers."""

    def __init__(self, factories, labels, seed, make_optimizer):
        self.factories, self.labels, self.seed = factories, labels, seed
        self.make_optimizer = make_optimizer
        self.layers, self.optimizers, self.losses, self.kept = {}, {}, [], {}

    def layer(self, block, candidate=0):
        """Made when it is used first."""
        place = block, candidate
        if place not in self.layers:
            page.start_draws(f"{self.seed}/layer/{block}/{candidate}")
            self.layers[place] = self.factories[block][candidate]().train()
            parameters = list(self.layers[place].parameters())
            self.optimizers[place] = (
                self.make_optimizer(block, self.layers[place]) if parameters else None
            )
        return self.layers[place]

    def label(self, block, candidate):
        return f"{self.labels[block]}.{candidate}" if self.labels[block].isdecimal() else (
            self.labels[block]
        )  # fmt: skip

    def step_all(self, places, rate, before=None, after=None):
        """``before`` clips; ``after`` is told of every layer that was stepped."""
        for place in places:
            optimizer = self.optimizers[place]
            if optimizer is None:
                continue
            for group in optimizer.param_groups:
                group["lr"] = rate * 1.0 * group.get("lr_factor", 1.0)
            if before:
                before(self.layers[place])
            optimizer.step()
            if after:
                after(place, self.layers[place])
            optimizer.zero_grad(set_to_none=True)

    def tensors(self):
        """By the names of the page."""
        found = {}
        for place, layer in self.layers.items():
            key = f"0/{self.label(*place)}"
            names = {p: name for name, p in layer.named_parameters()}
            found |= {f"{key}/param/{name}": p.detach() for p, name in names.items()}
            found |= {f"{key}/buffer/{name}": b for name, b in layer.named_buffers()}
            optimizer = self.optimizers[place]
            states = list(optimizer.state.items() if optimizer else ())
            for p, state in [*states, *((p, s) for p, s in self.kept.items() if p in names)]:
                found |= {f"{key}/optimizer/{names[p]}/{k}": value for k, value in state.items()}
        return found


def differences(run_dir, loop):
    """Names of everything that the run has otherwise than the loop, to the last bit."""
    final = Path(run_dir) / "checkpoints/final"
    text = (Path(run_dir) / "losses.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    ours = [int(page.bits_of(loss), 16) for loss in loop.losses]
    theirs = [int(line["bits"], 16) for line in lines]
    found = [] if len(ours) == len(theirs) else ["number of losses"]
    found += [f"loss {n}" for n, pair in enumerate(zip(ours, theirs, strict=False)) if
              pair[0] != pair[1]]  # fmt: skip
    tensors = page.tensors_of(final)
    manifest = json.loads((final / "manifest.json").read_text())
    own = {name: value for name, value in loop.tensors().items() if value is not None}
    numbers = {name: value for name, value in own.items() if not torch.is_tensor(value)}
    scalars = manifest["scalars"]
    found += [f"number {n}" for n in numbers.keys() | scalars if
              numbers.get(n) != scalars.get(n)]  # fmt: skip
    own = {name: value for name, value in own.items() if torch.is_tensor(value)}
    found += [f"only one has {name}" for name in own.keys() ^ tensors.keys()]
    both = own.keys() & tensors.keys()
    return found + sorted(name for name in both if raw(own[name]) != raw(tensors[name]))


def raw(tensor):
    """Dtype, shape and bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()
