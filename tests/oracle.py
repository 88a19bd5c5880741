"""The oracle: a plain PyTorch loop that knows nothing of naspipe but the modules of a space.

One subnet after the other: batch, forward through the chosen layers in one full autograd
graph, loss, backward, one optimizer per layer. Two public rules are written out here a second
time on purpose: each block takes one alias of each of its inputs, and the seeds of random
draws and of parameters are one-line functions.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from contextlib import nullcontext

import torch


def keyed_seed(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class PlainLoop:
    """Trains ``stream`` (one choice per choice block and subnet) and keeps every result.

    ``rules`` maps a block of the chain to ``"frozen"`` or to a number K for lag(K); every
    other block is exact.
    """

    def __init__(
        self, factories, fields, rules, seed, optimizer, lr, options=None, bf16=False, device="cpu",
        clip_layer_norm=0.0, ema=0.0, nonfinite="stop",
    ):  # fmt: skip
        self.clip_layer_norm, self.ema, self.averages = clip_layer_norm, ema, {}
        self.nonfinite = nonfinite
        self.device = torch.device(device)
        self.factories, self.fields, self.rules = factories, fields, rules
        self.seed, self.lr, self.bf16 = seed, lr, bf16
        self.make_optimizer = lambda p: getattr(torch.optim, optimizer)(p, lr=0.1, **options or {})
        self.layers, self.optimizers, self.losses = {}, {}, []
        self.history = {b: deque(maxlen=k + 1) for b, k in rules.items() if k != "frozen"}

    def layer(self, block, candidate):
        if (block, candidate) not in self.layers:
            torch.manual_seed(keyed_seed(f"{self.seed}/layer/{block}/{candidate}"))
            module = self.factories[block][candidate]().train().to(self.device)
            module.requires_grad_(self.rules.get(block) != "frozen")
            self.layers[block, candidate] = module
            trained = [p for p in module.parameters() if p.requires_grad]
            self.optimizers[block, candidate] = self.make_optimizer(trained) if trained else None
            if block in self.history:
                self.history[block].append(copy.deepcopy(module))
        return self.layers[block, candidate]

    def step(self, y, choices, batch, loss_fn):
        used, state = [], ()
        batch = {name: field.to(self.device) for name, field in batch.items()}
        kind = self.device.type
        autocast = torch.autocast(kind, dtype=torch.bfloat16) if self.bf16 else nullcontext()
        for block, candidate in enumerate(choices):
            module = self.layer(block, candidate)
            if block in self.history:
                # The oldest of the last K + 1 versions: that of subnet y - 1 - K, or the first.
                module = self.history[block][0]
            used.append(module)
            torch.manual_seed(keyed_seed(f"{self.seed}/{y}/{block}/0"))
            with autocast:
                aliases = [t.view_as(t) for t in state]
                out = module(*aliases, *(batch[name] for name in self.fields[block]))
                state = out if isinstance(out, tuple) else (out,)
                if block == len(choices) - 1:
                    loss = loss_fn(*state, batch["target"])
        if self.nonfinite != "skip" or loss.isfinite():
            loss.backward()
        for block, (candidate, module) in enumerate(zip(choices, used, strict=True)):
            newest = self.layers[block, candidate]
            if module is not newest:
                for p, q in zip(newest.parameters(), module.parameters(), strict=True):
                    p.grad, q.grad = q.grad, None
            optimizer = self.optimizers[block, candidate]
            if optimizer is not None:
                optimizer.param_groups[0]["lr"] = self.lr(y) if callable(self.lr) else self.lr
                if self.clip_layer_norm:
                    torch.nn.utils.clip_grad_norm_(newest.parameters(), self.clip_layer_norm)
                optimizer.step()
                if self.ema:
                    self.average(newest)
                optimizer.zero_grad(set_to_none=True)
            if block in self.history:
                self.history[block].append(copy.deepcopy(newest))
        self.losses.append(loss.detach().cpu().clone())

    @torch.no_grad()
    def average(self, module):
        """Each parameter's moving average over its own steps; the first step copies it."""
        for p in (p for p in module.parameters() if p.grad is not None):
            if p in self.averages:
                self.averages[p].lerp_(p, 1.0 - self.ema)
            else:
                self.averages[p] = p.clone()

    def tensors(self):
        """Parameters, buffers and optimizer state: (block, candidate, name) -> value."""
        found = {}
        for (block, candidate), module in self.layers.items():
            names = {p: name for name, p in module.named_parameters()}
            for name, p in module.named_parameters():
                found[block, candidate, f"param/{name}"] = p.detach()
                if p in self.averages:
                    found[block, candidate, f"optimizer/{name}/naspipe_ema"] = self.averages[p]
            for name, buffer in module.named_buffers():
                found[block, candidate, f"buffer/{name}"] = buffer
            optimizer = self.optimizers[block, candidate]
            for p, state in (optimizer.state if optimizer else {}).items():
                for key, value in state.items():
                    found[block, candidate, f"optimizer/{names[p]}/{key}"] = value
        return found


def bits(tensor):
    """Dtype, shape and bytes: -0.0 is not 0.0 and a NaN is its payload."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # a view as bytes needs stride 1
    flat.view(tensor.shape).copy_(tensor.detach())
    return str(tensor.dtype), tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()
