"""The oracle's layers that are read late, and step otherwise than others: see tests/oracle.py."""

from __future__ import annotations

import copy
import inspect
import math

import torch


class LateLayers:
    """The part of a plain loop that keeps older versions of layers."""

    def begin_late(self, rules):
        self.stale = {
            b: rule if isinstance(rule, dict) else {"lag": rule}
            for b, rule in rules.items() if rule != "frozen"
        }  # fmt: skip
        self.history = {b: [] for b in self.stale}
        self.gathered, self.updates, self.ahead = {}, {}, {}

    @property
    def known(self):
        return inspect.signature(self.optimizer).parameters

    def of(self, block, trained):
        """The optimizer of a layer, with its own momentum."""
        options, own = dict(self.options), self.stale.get(block, {}).get("momentum")
        if own is not None and "betas" in self.known:
            options["betas"] = (own, options.get("betas", (0.9, 0.999))[1])
        elif own is not None:
            options["momentum"] = own
        return self.optimizer(trained, lr=0.1, **options)

    def read(self, block, step):
        """The module that a step reads: the newest that is old enough."""
        rule = self.stale[block]
        if "every" in rule:
            wanted = step - step % rule["every"] - rule["every"] - 1
        else:
            wanted = step - 1 - self.late(rule, step)
        versions = self.history[block]
        while len(versions) > 1 and versions[1][0] <= wanted:
            versions.pop(0)
        return versions[0][1]

    def late(self, rule, step):
        """K, as it is for the readers of a step."""
        over = rule.get("over", 0)
        return math.floor(rule["lag"] * step / over) if step < over else rule["lag"]

    def gathers(self, module, step, every):
        """Add up the gradients of ``every`` steps; whether there is their mean to step with."""
        if every == 1:
            return True
        for p in (p for p in module.parameters() if p.grad is not None):
            total, count = self.gathered.get(p, (torch.zeros_like(p), 0))
            self.gathered[p], p.grad = (total + p.grad, count + 1), None
        if step % every != every - 1:
            return False
        for p in (p for p in module.parameters() if self.gathered.get(p, (0, 0))[1]):
            p.grad = self.gathered[p][0] / every
            self.gathered[p] = torch.zeros_like(p), 0
        return True

    def how_far(self, rule, late):
        """Updates that momentum alone adds in K steps, in units of the last one."""
        options = {"momentum": 0.0, "betas": (0.9,), **self.options}
        again = options["betas"][0] if "betas" in self.known else options["momentum"]
        again = again if rule["momentum"] is None else rule["momentum"]
        return sum(again**k for k in range(1, late + 1))

    @torch.no_grad()
    def foreseen(self, newest, before, rule, step):
        """What readers see: with ``predict`` the layer behind K more updates like its last one.

        That is the K of the first of them.
        """
        seen, late = copy.deepcopy(newest), 0
        while rule.get("predict") and self.late(rule, step + 1 + late) != late:
            late += 1
        for p, q in zip(newest.parameters(), seen.parameters(), strict=True):
            if rule.get("predict") and (p in before or p in self.updates):
                self.updates[p] = p - before.get(p, p)
                self.ahead[p] = late
                if late:
                    q.add_(self.updates[p] * self.how_far(rule, late))
        return seen
