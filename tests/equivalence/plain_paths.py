"""A plain loop over blocks that draw paths from architecture parameters; knows nothing of naspipe.

The formulas of its rounds are written out here a second time on purpose.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.keyed_draws import keyed_seed


class PlainBlock:
    """One student block: of each layer the candidates, and a number for each of several."""

    def __init__(self, layers, seed, lr, options, table=None, reference=None):
        self.seed, self.lr, self.table, self.reference = seed, lr, table, reference
        self.layers, self.optimizers, self.losses = [], [], []
        for number, factories in enumerate(layers):
            torch.manual_seed(keyed_seed(f"{seed}/layer/{number}/0"))
            candidates = nn.ModuleList([make() for make in factories]).train()
            alpha = nn.Parameter(torch.zeros(len(factories))) if len(factories) > 1 else None
            self.layers.append((candidates, alpha))
            of_weights = torch.optim.SGD([{"params": [*candidates.parameters()]}], **options)
            of_alpha = (
                torch.optim.Adam([alpha], lr=0.1, betas=(0.0, 0.999)) if alpha is not None else None
            )
            self.optimizers.append((of_weights, of_alpha))

    def step(self, y, is_architecture, x, learn):
        made, cost = [], None
        for number, (candidates, alpha) in enumerate(self.layers):
            candidates.requires_grad_(not is_architecture)
            torch.manual_seed(keyed_seed(f"{self.seed}/{y}/{number}/0"))
            share = torch.ones(1) if alpha is None else alpha.softmax(0)
            drawn = 0 if alpha is None else int(torch.multinomial(share.detach(), 1))
            x = x.view_as(x)
            if is_architecture:
                outputs = [candidate(x) for candidate in candidates]
                x = (
                    outputs[drawn]
                    if outputs[drawn].requires_grad
                    else outputs[drawn].requires_grad_()
                )
                made.append((x, outputs, alpha))
            else:
                x = candidates[drawn](x)
            if self.table:
                own = (share * torch.tensor(self.table[number])).sum()
                cost = own if cost is None else cost + own
        loss = learn(x)
        if is_architecture:
            if self.table:
                loss = loss * 1.5 * (cost.log() / math.log(self.reference)) ** 0.6
            self.learn_alphas(loss, made)
        elif loss.requires_grad:
            loss.backward()
        self.losses.append(loss.detach())
        for of_weights, of_alpha in self.optimizers:
            of_weights.param_groups[0]["lr"] = self.lr(y)
            for optimizer in (of_weights, of_alpha):
                if optimizer is not None:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)

    @staticmethod
    def learn_alphas(loss, made):
        chosen = [(outputs, alpha, x) for x, outputs, alpha in made if alpha is not None]
        if not chosen:
            return
        wanted = [x for *_, x in chosen] + [alpha for _, alpha, _ in chosen]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        of_outputs, of_costs = found[: len(chosen)], found[len(chosen) :]
        for (outputs, alpha, _), gradient, of_cost in zip(
            chosen, of_outputs, of_costs, strict=True
        ):
            p = alpha.detach().softmax(0)
            gates = torch.stack([(gradient * output.detach()).sum() for output in outputs])
            alpha.grad = p * (gates - (p * gates).sum())
            if of_cost is not None:
                alpha.grad += of_cost

    def tensors(self):
        """As of tests.oracle.PlainLoop."""
        found = {}
        for number, (candidates, alpha) in enumerate(self.layers):
            named = {f"candidates.{name}": p for name, p in candidates.named_parameters()}
            named |= {} if alpha is None else {"alpha": alpha}
            buffers = {f"candidates.{name}": b for name, b in candidates.named_buffers()}
            found |= {(number, 0, f"param/{name}"): p.detach() for name, p in named.items()}
            found |= {(number, 0, f"buffer/{name}"): b for name, b in buffers.items()}
            for optimizer in (each for each in self.optimizers[number] if each is not None):
                for name, p in named.items():
                    for key, value in optimizer.state.get(p, {}).items():
                        found[number, 0, f"optimizer/{name}/{key}"] = value
        return found
