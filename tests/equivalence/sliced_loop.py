"""A plain loop that steps only what its subnets use: the rest is put back behind each step.

What a subnet uses of a layer is found without any cut: it is where a gradient arrives, of random
inputs and a random gradient.
"""

from __future__ import annotations

import copy

import torch

from tests.oracle import PlainLoop


class SlicedLoop(PlainLoop):
    """See :class:`tests.oracle.PlainLoop`; ``sliced`` are the blocks that it is about."""

    def __init__(self, sliced, *args, **kw):
        super().__init__(*args, **kw)
        self.sliced, self.chosen, self.masks = sliced, {}, {}

    def begin_pass(self, step, choices, used):
        for block, option in enumerate(choices):
            self.chosen.setdefault(block, set()).add(option)
        return super().begin_pass(step, choices, used)

    def write(self, step, used):
        super().write(step, used)
        self.chosen.clear()

    def call(self, module, block, option):
        found = super().call(module, block, option)
        if block not in self.sliced or (block, option) in self.masks:
            return found

        def look_first(*inputs):
            self.masks[block, option] = self.reached(module, block, option, inputs)
            return found(*inputs)

        return look_first

    @torch.enable_grad()  # a teacher's or a probe's forward may be the first
    def reached(self, module, block, option, inputs):
        """Of several random networks, as one may have dead entries by chance.

        Statistics of norms stay as they are: a batch's own ones undo the scale before them.
        """
        found = [torch.zeros_like(p, dtype=torch.bool) for p in module.parameters()]
        with torch.random.fork_rng():
            for _ in range(12):
                twin = copy.deepcopy(module).eval().requires_grad_(True)
                for p in twin.parameters():
                    p.data.normal_()
                twin.zero_grad(set_to_none=True)
                out = super().call(twin, block, option)(*map(self.any_like, inputs))
                if out.requires_grad:
                    out.backward(torch.randn_like(out))
                for mask, p in zip(found, twin.parameters(), strict=True):
                    mask |= False if p.grad is None else p.grad != 0
        return found

    @staticmethod
    def any_like(given):
        if given.is_floating_point():
            return torch.randn(16, *given.shape[1:])
        return torch.arange(20).repeat(given.shape[0], 1)

    def used(self, block, module):
        """Each parameter with what a pass of the step used of it."""
        masks = [self.masks[block, option] for option in sorted(self.chosen[block])]
        both = [torch.stack(each).any(0) for each in zip(*masks, strict=True)]
        return list(zip(module.parameters(), both, strict=True))

    def begin_step(self, block, newest):
        if block in self.sliced:
            for p, mask in self.used(block, newest):
                if not mask.any():
                    p.grad = None

    @torch.no_grad()
    def step_layer(self, block, newest, optimizer):
        if block not in self.sliced:
            return super().step_layer(block, newest, optimizer)
        old = {p: p.clone() for p in newest.parameters()}
        kept = {
            p: {key: value.clone() for key, value in state.items() if torch.is_tensor(value)}
            for p, state in optimizer.state.items()
        }
        averages = {p: self.averages[p].clone() for p in old if p in self.averages}
        super().step_layer(block, newest, optimizer)
        for p, mask in self.used(block, newest):
            if p.grad is None:
                continue
            p[~mask] = old[p][~mask]
            for key, value in optimizer.state[p].items():
                if torch.is_tensor(value) and value.dim() and value.shape == p.shape:
                    before = kept.get(p, {}).get(key, torch.zeros_like(p))
                    value[~mask] = before[~mask]
            if p in self.averages:
                self.averages[p][~mask] = averages.get(p, old[p])[~mask]
        return None
