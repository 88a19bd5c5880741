"""A plain loop whose architecture rounds sample two paths; knows nothing of naspipe."""

from __future__ import annotations

import math

import torch

from tests.equivalence.plain_paths import PlainBlock
from tests.keyed_draws import keyed_seed


class PlainPairs(PlainBlock):
    """Weight rounds are those of :class:`PlainBlock`."""

    def step(self, y, is_architecture, x, learn):
        if not is_architecture:
            super().step(y, is_architecture, x, learn)
            return
        made, cost = [], torch.zeros(())
        for number, (candidates, alpha) in enumerate(self.layers):
            candidates.requires_grad_(False)
            torch.manual_seed(keyed_seed(f"{self.seed}/{y}/{number}/0"))
            pair, x = self.sampled(alpha), x.view_as(x)
            if pair is None:
                x = candidates[0](x)
            else:
                chosen = int(torch.multinomial(alpha.detach()[pair].softmax(0), 1))
                outputs = [candidates[each](x) for each in pair]
                x = outputs[chosen] if outputs[chosen].requires_grad else outputs[
                    chosen].requires_grad_()  # fmt: skip
                made.append((x, outputs, alpha, pair))
            if self.table:
                table = torch.tensor(self.table[number])
                own = table[0] if pair is None else (alpha[pair].softmax(0) * table[pair]).sum()
                cost = cost + own
        loss = learn(x)
        if self.table:
            loss = loss * 1.5 * (cost.log() / math.log(self.reference)) ** 0.6
        if made:
            self.learn_pairs(loss, made)
        self.losses.append(loss.detach())

    @staticmethod
    def sampled(alpha):
        """Two of the candidates, without replacement; none of one alone."""
        if alpha is None:
            return None
        weights = alpha.detach().clone()
        first = int(torch.multinomial(weights.softmax(0), 1))
        weights[first] = -math.inf
        return sorted([first, int(torch.multinomial(weights.softmax(0), 1))])

    def learn_pairs(self, loss, made):
        wanted = [x for x, *_ in made] + [alpha for *_, alpha, _ in made]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        of_costs = dict(zip(map(id, wanted[len(made) :]), found[len(made) :], strict=True))
        for (_, outputs, alpha, pair), gradient in zip(made, found[: len(made)], strict=True):
            one, other = ((gradient * output.detach()).sum() for output in outputs)
            share = alpha.detach()[pair].softmax(0)
            alpha.grad = torch.zeros_like(alpha)
            alpha.grad[pair[0]] = share[0] * share[1] * (one - other)
            alpha.grad[pair[1]] = -alpha.grad[pair[0]]
            if of_costs[id(alpha)] is not None:
                alpha.grad += of_costs[id(alpha)]
        pairs = {id(alpha): pair for *_, alpha, pair in made}
        for (_, alpha), (_, optimizer) in zip(self.layers, self.optimizers, strict=True):
            if optimizer is None:
                continue
            pair = pairs[id(alpha)]
            with torch.no_grad():
                before = torch.logsumexp(alpha[pair], 0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                alpha[pair] += before - torch.logsumexp(alpha[pair], 0)
