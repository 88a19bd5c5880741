"""The oracle: a plain PyTorch loop that knows nothing of naspipe but the modules of a space.

One subnet after the other: batch, forward through the chosen layers in one full autograd
graph, loss, backward, one optimizer per layer. Two public rules are written out here a second
time on purpose: each block takes one alias of each of its inputs, and the seeds of random
draws and of parameters are one-line functions.
"""

from __future__ import annotations

import copy
import functools
import math
from contextlib import nullcontext

import torch

from tests.keyed_draws import start_draws
from tests.plain_rules import LateLayers


class PlainLoop(LateLayers):
    """Trains ``stream`` (one choice per choice block and subnet) and keeps every result.

    ``rules`` maps a block of the chain to ``"frozen"``, to a number K for lag(K), or to a dict:
    ``lag`` (with ``over`` and ``predict``) or ``every``, ``momentum``, ``lr``; every other block is
    exact. ``settings`` maps a block with one layer of many options to the function that calls it
    and, of each option, the keywords.
    """

    def __init__(
        self, factories, fields, rules, seed, optimizer, lr, options=None, bf16=False, device="cpu",
        clip_layer_norm=0.0, ema=0.0, clip_global_norm=0.0, nonfinite="stop", norms="ordered",
        reduction="fold", split=None, settings=None,
    ):  # fmt: skip
        self.settings = settings or {}
        self.reduction, self.split = reduction, split
        self.defers, self.statistics = norms == "deferred", []
        self.clip_global_norm = clip_global_norm
        self.clip_layer_norm, self.ema, self.averages = clip_layer_norm, ema, {}
        self.nonfinite = nonfinite
        self.device = torch.device(device)
        self.factories, self.fields, self.rules = factories, fields, rules
        self.begin_late(rules)
        self.seed, self.lr, self.bf16 = seed, lr, bf16
        self.optimizer, self.options = optimizer, options or {}
        if isinstance(optimizer, str):
            self.optimizer = getattr(torch.optim, optimizer)
        self.layers, self.optimizers, self.losses = {}, {}, []

    def layer(self, block, candidate):
        if (block, candidate) not in self.layers:
            start_draws(f"{self.seed}/layer/{block}/{candidate}")
            module = self.factories[block][candidate]().train().to(self.device)
            module.requires_grad_(self.rules.get(block) != "frozen")
            self.layers[block, candidate] = module
            trained = [p for p in module.parameters() if p.requires_grad]
            given = self.split(block, module) if self.split and trained else trained
            self.optimizers[block, candidate] = self.of(block, given) if trained else None
            if block in self.history:
                self.history[block].append((-1, copy.deepcopy(module)))
        return self.layers[block, candidate]

    def step(self, y, choices, batch, loss_fn):
        self.take(y, [(choices, batch)], loss_fn)

    def take(
        self, step, passes, loss_fn, *, averages_loss=False, averages_users=False, distill=None,
        weighs_items=False, lessons=None,
    ):  # fmt: skip
        """One optimizer step for several passes, each of them (choices, batch).

        Micro-batches divide each loss by their number. With ``averages_users`` each layer's sum of
        gradients is divided by how many passes used it. With ``distill`` the passes behind the
        first one learn its output. With ``weighs_items`` each loss counts by its batch's targets.
        With ``lessons`` each pass learns one of them by the loss's ``distill``. Lag counts steps.
        """
        used, users, taught, leaves = {}, {}, [], []
        items = [self.items(batch["target"], loss_fn) for _, batch in passes if weighs_items]

        def learn(output, target):
            return distill(output, taught[0])

        for number, (choices, batch) in enumerate(passes):
            modules, calls = self.begin_pass(step, choices, used)
            for pair in self.layers_of(choices):
                users[pair] = users.get(pair, 0) + 1
            end = learn if distill and number else loss_fn
            if lessons is not None:
                end = LearnsFrom(loss_fn, lessons[number])
            state, loss = self.forward(step, number, modules, batch, end, calls)
            taught = taught or state
            if self.nonfinite != "skip" or loss.isfinite():
                if weighs_items:
                    loss_part = loss * (items[number] / sum(items))
                else:
                    loss_part = loss / len(passes) if averages_loss else loss
                loss_part.backward()
            if self.reduction == "tree":
                leaves.append(self.leaf(modules))
            self.losses.append(loss.detach().cpu().clone())
        for p, gradient in self.halves(leaves).items() if leaves else ():
            p.grad = gradient
        for pair, count in users.items() if averages_users else ():
            for p in (p for p in used[pair].parameters() if p.grad is not None and count > 1):
                p.grad.div_(count)
        self.write(step, used)

    def take_joined(self, step, passes, loss_fn, lessons):
        """One optimizer step with one loss over the outputs of all passes."""
        used, outputs, leaves, chains = {}, [], [], []
        for number, (choices, batch) in enumerate(passes):
            modules, calls = self.begin_pass(step, choices, used)
            _, output = self.forward(step, number, modules, batch, AsItIs(), calls)
            outputs.append(output)
            chains.append(modules)
        loss = loss_fn.joined(outputs, lessons)
        gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
        for output, gradient, modules in zip(outputs, gradients, chains, strict=True):
            output.backward(gradient)
            if self.reduction == "tree":
                leaves.append(self.leaf(modules))
        for p, gradient in self.halves(leaves).items() if leaves else ():
            p.grad = gradient
        self.losses += [loss.detach().cpu().clone()] * len(passes)
        self.write(step, used)

    def begin_pass(self, step, choices, used):
        """The modules that a pass reads, which are noted, and what computes its options."""
        for block, candidate in self.layers_of(choices):
            module = self.layer(block, candidate)
            lags = block in self.history
            used[block, candidate] = self.read(block, step) if lags else module
        modules = [used[pair] for pair in self.layers_of(choices)]
        return modules, [self.call(m, b, choices[b]) for b, m in enumerate(modules)]

    def layers_of(self, choices):
        """Block and candidate: all options of an elastic layer are the first one."""
        return [(b, 0 if b in self.settings else choice) for b, choice in enumerate(choices)]

    def call(self, module, block, option):
        """What computes an option with a layer's module."""
        if block not in self.settings:
            return module
        apply, options = self.settings[block]
        call = module if apply is None else functools.partial(apply, module)
        return functools.partial(call, **options[option])

    @staticmethod
    def items(target, loss_fn):
        """Targets that a loss counts."""
        ignored = getattr(loss_fn, "ignore_index", None)
        return sum(1 for value in target.flatten().tolist() if value != ignored)

    @staticmethod
    def leaf(modules):
        """The gradients of one pass, taken out of the parameters."""
        parameters = [p for module in modules for p in module.parameters() if p.grad is not None]
        found = {p: p.grad for p in parameters}
        for p in parameters:
            p.grad = None
        return found

    def halves(self, leaves):
        """Gradients of passes, added up as a balanced tree; who has none is left out."""
        if len(leaves) == 1:
            return leaves[0]
        half = len(leaves) // 2
        left, right = self.halves(leaves[:half]), self.halves(leaves[half:])
        both = {p: left[p] + right[p] for p in left.keys() & right.keys()}
        return {**left, **right, **both}

    def forward(self, step, number, modules, batch, loss_fn, calls=None):
        state, kind = (), self.device.type
        batch = {name: field.to(self.device) for name, field in batch.items()}
        autocast = torch.autocast(kind, dtype=torch.bfloat16) if self.bf16 else nullcontext()
        for block, module in enumerate(modules):
            key = start_draws(f"{self.seed}/{step}/{block}/{number}")
            with autocast:
                aliases = [t.view_as(t) for t in state]
                kept = self.begin_statistics(module) if self.defers else ()
                out = (calls or modules)[block](
                    *aliases, *(batch[name] for name in self.fields[block])
                )
                self.statistics += self.end_statistics(module, kept)
                state = out if isinstance(out, tuple) else (out,)
                end = state[0]
                if block == len(modules) - 1:
                    named = getattr(loss_fn, "fields", ("target",))
                    end = loss = loss_fn(*state, *(batch[name] for name in named))
                if end.requires_grad:
                    end.register_hook(functools.partial(self.begin_backward, key))
        return [t.detach() for t in state], loss

    @staticmethod
    def begin_backward(key, _):
        start_draws(f"{key}/backward")

    @staticmethod
    def begin_statistics(module):
        """Let each norm leave its batch's own statistics, by adding all of them to nothing."""
        kept = []
        for norm in module.modules():
            if isinstance(norm, torch.nn.modules.batchnorm._BatchNorm):
                kept.append((norm, norm.running_mean, norm.running_var, norm.momentum))
                norm.running_mean, norm.running_var = map(torch.zeros_like, kept[-1][1:3])
                norm.momentum = 1.0
        return kept

    @staticmethod
    def end_statistics(module, kept):
        found = []
        for norm, mean, var, momentum in kept:
            place = [*module.modules()].index(norm)
            found.append((module, place, norm.running_mean, norm.running_var))
            norm.running_mean, norm.running_var, norm.momentum = mean, var, momentum
            norm.num_batches_tracked -= 1
        return found

    @torch.no_grad()
    def fold_statistics(self, used):
        """One pass after the other, into the newest version."""
        newest = {id(module): self.layers[pair] for pair, module in used.items()}
        for module, place, mean, var in self.statistics:
            norm = [*newest[id(module)].modules()][place]
            norm.num_batches_tracked += 1
            norm.running_mean.mul_(1 - norm.momentum).add_(mean, alpha=norm.momentum)
            norm.running_var.mul_(1 - norm.momentum).add_(var, alpha=norm.momentum)
        self.statistics.clear()

    def write(self, step, used):
        self.fold_statistics(used)
        for pair, module in used.items():
            newest = self.layers[pair]
            if module is not newest:
                for p, q in zip(newest.parameters(), module.parameters(), strict=True):
                    p.grad, q.grad = q.grad, None
        if self.clip_global_norm:
            self.clip([self.layers[pair] for pair in sorted(used)])
        for (block, candidate), newest in ((pair, self.layers[pair]) for pair in used):
            optimizer = self.optimizers[block, candidate]
            rule = self.stale.get(block, {})
            self.begin_step(block, newest)
            stepped = [p for p in newest.parameters() if p.grad is not None]
            before = {p: p.detach().clone() for p in stepped if block in self.history}
            if optimizer is not None and self.gathers(newest, step, rule.get("every", 1)):
                lr = self.lr(step) if callable(self.lr) else self.lr
                for group in optimizer.param_groups:
                    group["lr"] = lr * rule.get("lr", 1.0) * group.get("lr_factor", 1.0)
                if self.clip_layer_norm:
                    torch.nn.utils.clip_grad_norm_(newest.parameters(), self.clip_layer_norm)
                self.step_layer(block, newest, optimizer)
                optimizer.zero_grad(set_to_none=True)
            if block in self.history:
                self.history[block].append((step, self.foreseen(newest, before, rule, step)))

    def begin_step(self, block, newest):
        """Its gradients are there."""

    def step_layer(self, block, newest, optimizer):
        optimizer.step()
        if self.ema:
            self.average(newest)

    def clip(self, modules):
        """By the norm of all gradients: squares of the layers' norms, summed in block order."""
        total, gradients = 0.0, []
        for module in modules:
            of_layer = [p.grad for p in module.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(of_layer)) if of_layer else 0.0
            total, gradients = total + norm * norm, gradients + of_layer
        factor = self.clip_global_norm / (math.sqrt(total) + 1e-6)
        factor = math.nan if math.isnan(total) else factor
        for gradient in () if factor >= 1.0 else gradients:
            gradient.mul_(factor)

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
                own = {"naspipe_ema": self.averages.get(p), "naspipe_update": self.updates.get(p)}
                if self.stale.get(block, {}).get("over"):
                    own["naspipe_ahead"] = self.ahead.get(p)
                own["naspipe_sum"], own["naspipe_count"] = self.gathered.get(p, (None, None))
                for key, value in own.items():
                    if value is not None:
                        found[block, candidate, f"optimizer/{name}/{key}"] = value
            for name, buffer in module.named_buffers():
                found[block, candidate, f"buffer/{name}"] = buffer
            optimizer = self.optimizers[block, candidate]
            for p, state in (optimizer.state if optimizer else {}).items():
                for key, value in state.items():
                    found[block, candidate, f"optimizer/{names[p]}/{key}"] = value
        return found


class LearnsFrom:
    """The loss of one pass with what its teacher says."""

    def __init__(self, loss, lesson):
        self.loss, self.lesson = loss, lesson
        self.fields = getattr(loss, "fields", ("target",))
        if isinstance(loss, torch.nn.CrossEntropyLoss):
            self.fields = ()

    def __call__(self, *args):
        outputs, fields = args[: len(args) - len(self.fields)], args[len(args) - len(self.fields) :]
        if isinstance(self.loss, torch.nn.CrossEntropyLoss):
            return torch.nn.functional.cross_entropy(*outputs, self.lesson.softmax(1))
        return self.loss.distill(*outputs, self.lesson, *fields)


class AsItIs:
    """In the place of a loss: the output itself."""

    fields = ()

    def __call__(self, output):
        return output


def bits(tensor):
    """Dtype, shape and bytes: -0.0 is not 0.0 and a NaN is its payload."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # a view as bytes needs stride 1
    flat.view(tensor.shape).copy_(tensor.detach())
    return str(tensor.dtype), tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()
