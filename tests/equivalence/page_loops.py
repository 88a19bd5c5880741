"""Plain loops written from docs/reproducibility.md alone, one for each kind of run."""

from __future__ import annotations

import copy
from functools import partial
from itertools import product

import torch
from torch.nn import functional

from tests.equivalence.page_loop import Loop, page


def grouped(labels, lr, momentum, decays, block, layer):
    """SGD without decay of biases and norms, and with half the rate in the head."""
    rest, plain, head = [], [], []
    for owner in layer.modules():
        for name, p in owner.named_parameters(recurse=False):
            is_plain = name == "bias" or type(owner).__name__ == "BatchNorm1d"
            (plain if is_plain else head if labels[block] == "head" else rest).append(p)
    groups = [
        {"params": rest},
        {"params": plain, "weight_decay": 0.0},
        {"params": head, "lr_factor": 0.5},
    ]
    taken = [each for each in groups if each["params"]]
    return torch.optim.SGD(taken, lr=lr, momentum=momentum, weight_decay=decays)


def supernet(factories, labels, seed, data, steps, *, passes, lag, over, lr, warmup, clip, decay,
             momentum, decays):  # fmt: skip
    """Micro-batches; block 0 lags and is foreseen; norms deferred, groups, average, global norm."""
    make_optimizer = partial(grouped, labels, lr, momentum, decays)
    loop = Loop(factories, labels, seed, make_optimizer)
    choosing = [n for n, label in enumerate(labels) if label.isdecimal()]
    streams = [
        page.uniform(page.draws_of("uniform", n, seed), len(factories[block]))
        for n, block in enumerate(choosing)
    ]
    versions, averages, updates = {-1: copy.deepcopy(loop.layer(0))}, {}, {}
    for step in range(steps):
        drawn = iter([next(each) for each in streams])
        chain = [(b, next(drawn) if b in choosing else 0) for b in range(len(labels))]
        layers = [loop.layer(*place) for place in chain]
        wanted = step - 1 - page.lag_of(step, lag, over)
        read = [copy.deepcopy(versions[max(-1, wanted)]), *layers[1:]]
        statistics = []
        for number in range(passes):
            batch, tensors = data(seed, step * passes + number), ()
            blocks = [(module, ("input",) if not b else ()) for b, module in enumerate(read)]
            kept = [page.set_aside(module) for module in read]
            tensors = page.forward(blocks, batch, seed, step, number)
            statistics.append([page.put_back(each) for each in kept])
            loss = functional.cross_entropy(*tensors, batch["target"])
            loop.losses.append(loss.detach())
            (loss / passes).backward()
        for newest, used in zip(layers[0].parameters(), read[0].parameters(), strict=True):
            newest.grad = used.grad
        page.clip_all(layers, clip)
        before = {p: p.detach().clone() for p in layers[0].parameters()}
        rate = page.rate(step, steps, lr, "cosine", warmup)
        loop.step_all(chain, rate, after=lambda _, layer: page.average(averages, layer, decay))
        for found in statistics:
            for layer, each in zip(layers, found, strict=True):
                page.fold(layer, each)
        ahead = page.ahead_of(step, lag, over)
        versions[step] = copy.deepcopy(layers[0])
        with torch.no_grad():
            for p, seen in zip(before, versions[step].parameters(), strict=True):
                updates[p] = p - before[p]
                if ahead:
                    seen.copy_(page.foreseen(p, updates[p], momentum, ahead))
    for p, value in averages.items():
        loop.kept[p] = {"naspipe_ema": value}
    for p, value in updates.items():
        loop.kept[p]["naspipe_update"] = value
        if over:
            loop.kept[p]["naspipe_ahead"] = ahead
    return loop


def momentum_teacher(factories, labels, seed, data, transform, steps, *, views, batches, without,
                     tau, end, lag, make_optimizer, loss):  # fmt: skip
    """Views of each sample, a teacher that follows, and a loss of each pass or of all of them."""
    loop = Loop(factories, labels, seed, lambda _, layer: make_optimizer(layer.parameters()))
    student = [loop.layer(block) for block in range(len(labels))]
    teacher = copy.deepcopy(student[: len(labels) - without])
    taught = [copy.deepcopy(teacher)] * (lag + 1)  # what steps read, the next one first
    passes = views * batches
    for step in range(steps):
        lessons, outputs, own, seen = [], [], [], []
        for number in range(passes):
            batch = page.view(data, (transform,), seed, step * passes + number, views, batches)
            for into, found, modules, role in (
                (lessons, seen, taught[0], "/teacher"), (outputs, own, student, ""),
            ):  # fmt: skip
                blocks = [(m, ("input",) if not b else ()) for b, m in enumerate(modules)]
                kept = [page.set_aside(module) for module in modules]
                with torch.set_grad_enabled(not role):
                    into += page.forward(blocks, batch, seed, step, number, role)
                found.append([page.put_back(each) for each in kept])
        if hasattr(loss, "joined"):
            loop.losses += [page.backward_joined(loss, outputs, lessons)] * passes
        else:
            for number, output in enumerate(outputs):
                value = loss.distill(output, lessons[(number + batches) % passes])
                loop.losses.append(value.detach())
                (value / passes).backward()
        loop.step_all(loop.layers, loop.optimizers[0, 0].param_groups[0]["lr"])
        for found in own:
            for layer, each in zip(student, found, strict=True):
                page.fold(layer, each)
        for mine, its in zip(teacher, student, strict=False):
            page.follow(mine, its, page.tau_of(step, steps, tau, end))
        for found in seen:
            for layer, each in zip(teacher, found, strict=True):
                page.fold(layer, each)
        taught = [*taught[1:], copy.deepcopy(teacher)]
    followed = Loop(factories, labels, seed, None)
    followed.layers = {(block, 0): layer for block, layer in enumerate(teacher)}
    followed.optimizers = dict.fromkeys(followed.layers)
    return loop, followed


def blockwise(teachers, students, seed, data, steps, *, lr, schedule, make_optimizer):
    """``students``: of each block its chain of lists of candidates, all of them choice blocks."""
    loops = [
        Loop(chain, [str(n) for n in range(len(chain))], seed + i,
             lambda _, layer: make_optimizer(layer.parameters()))
        for i, chain in enumerate(students)
    ]  # fmt: skip
    streams = [
        [page.uniform(page.draws_of("uniform", n, seed + i), len(each)) for n, each in
         enumerate(chain)]
        for i, chain in enumerate(students)
    ]  # fmt: skip
    for step in range(steps):
        batch = data(seed, step)
        x = batch["input"]
        for i, (part, loop) in enumerate(zip(teachers, loops, strict=True)):
            with torch.no_grad():
                lesson = part.eval()(x)
            chain = [(b, next(each)) for b, each in enumerate(streams[i])]
            blocks = [(loop.layer(*place), ()) for place in chain]
            (output,) = page.forward(blocks, batch, seed + i, step, tensors=(x,))
            if i < len(teachers) - 1:
                loss = functional.mse_loss(output, lesson)
            else:
                loss = functional.cross_entropy(output, lesson.softmax(1))
            loss.backward()
            loop.losses.append(loss.detach())
            loop.step_all(chain, page.rate(step, steps, lr, schedule))
            x = lesson
    return loops


def subnets_of(factories, labels, settings, seed, kind, number):
    """The subnets of one step after the other, each with a value of every decision."""
    decisions = {}
    for block, own in enumerate(settings):
        named = own or {labels[block]: range(len(factories[block]))}
        decisions |= {name: each for name, each in named.items() if name not in decisions}
    streams = [
        page.uniform(page.draws_of("uniform", n, seed), len(values))
        for n, values in enumerate(decisions.values())
    ]

    def sizes(label):
        own = factories[labels.index(label)]
        return [sum(p.numel() for p in make().parameters()) for make in own]

    def extreme(which):
        found = {}
        for name, values in decisions.items():
            by = sizes(name) if name.isdecimal() else list(values)
            found[name] = values[by.index(which(by))]
        return found

    while True:
        subnets = [extreme(max), extreme(min)] if kind == "sandwich" else []
        for _ in range(number):
            places = [next(each) for each in streams]
            pairs = zip(places, decisions.items(), strict=True)
            subnets.append({name: values[n] for n, (name, values) in pairs})
        yield subnets


def elastic(factories, labels, settings, seed, data, steps, *, kind, number, lr, make_optimizer,
            clip):  # fmt: skip
    """``settings``: of each elastic block the values by name; the others are choice blocks.

    ``kind`` is ``sandwich`` or ``users``.
    """
    loop = Loop(factories, labels, seed, lambda _, layer: make_optimizer(layer.parameters()))
    stream, count = [], number + 2 * (kind == "sandwich")
    drawn = subnets_of(factories, labels, settings, seed, kind, number)
    for step in range(steps):
        subnets = next(drawn)
        users, first = {}, None
        for place, subnet in enumerate(subnets):
            batch = data(seed, step if kind == "sandwich" else step * count + place)
            blocks, options = [], []
            for block, own in enumerate(settings):
                candidate = 0 if own else subnet[labels[block]]
                users[block, candidate] = users.get((block, candidate), 0) + 1
                module = loop.layer(block, candidate)
                keywords = {name: subnet[name] for name in own}
                rows = list(product(*own.values()))
                options.append(rows.index(tuple(keywords.values())) if own else candidate)
                call = (lambda *x, m=module, k=keywords: m(*x, **k)) if own else module
                blocks.append((call, ("input",) if not block else ()))
            (output,) = page.forward(blocks, batch, seed, step, place)
            if kind == "sandwich" and place:
                loss = functional.cross_entropy(output, first.softmax(1))
            else:
                loss = functional.cross_entropy(output, batch["target"])
            first = output.detach() if first is None else first
            loss.backward()
            loop.losses.append(loss.detach())
            stream.append(options)
        for place, uses in users.items() if kind == "users" else ():
            for p in loop.layers[place].parameters():
                if p.grad is not None and uses > 1:
                    p.grad.div_(uses)

        def before(layer):
            torch.nn.utils.clip_grad_norm_(layer.parameters(), clip)

        loop.step_all(users, lr, before)
    return loop, stream


class Edge(torch.nn.Module):
    """Candidates in their order, then alpha."""

    def __init__(self, factories):
        super().__init__()
        self.candidates = torch.nn.ModuleList([make() for make in factories])
        many = len(factories) > 1
        self.alpha = torch.nn.Parameter(torch.zeros(len(factories))) if many else None


def mixed_edges(layers, seed, data, held_out, steps, *, every, start, lr, alpha_lr, is_pair,
                make_optimizer):  # fmt: skip
    """``layers``: of each edge the factories of its candidates."""

    def optimizer_of(_, edge):
        return make_optimizer(edge.candidates.parameters())

    factories = [[lambda each=each: Edge(each)] for each in layers]
    loop = Loop(factories, [str(n) for n in range(len(layers))], seed, optimizer_of)
    edges = [loop.layer(block) for block in range(len(layers))]
    alphas = {
        edge: torch.optim.Adam([edge.alpha], lr=alpha_lr, betas=(0.0, 0.999))
        for edge in edges if edge.alpha is not None
    }  # fmt: skip
    for step in range(steps):
        kind, number = page.round_of(step, every, start)
        learns = kind == "architecture"
        batch = (held_out if learns else data)(seed, number)
        x, made = batch["input"], []
        for block, edge in enumerate(edges):
            edge.candidates.requires_grad_(not learns)
            page.start_draws(f"{seed}/{step}/{block}/0")
            x, pair, place = x.view_as(x), None, 0
            if edge.alpha is not None:
                if learns and is_pair:
                    pair, place = page.drawn_pair(edge.alpha)
                else:
                    place = page.drawn(edge.alpha)
            if learns:
                among = range(len(edge.candidates)) if pair is None else pair
                outputs = [edge.candidates[n](x) for n in among]
                x = outputs[place]
                x = x if x.requires_grad else x.requires_grad_()
                made.append((edge, outputs, pair, x))
            else:
                x = edge.candidates[place](x)
        loss = functional.cross_entropy(x, batch["target"])
        loop.losses.append(loss.detach())
        if not learns:
            loss.backward()
            loop.step_all(loop.layers, lr)
            continue
        gradients = torch.autograd.grad(loss, [x for *_, x in made])
        for (edge, outputs, pair, _), gradient in zip(made, gradients, strict=True):
            if edge.alpha is not None:
                edge.alpha.grad = page.alpha_gradient(edge.alpha, outputs, gradient, pair)
                page.step_alpha(edge.alpha, alphas[edge], is_pair)
                alphas[edge].zero_grad(set_to_none=True)
    for edge, optimizer in alphas.items():
        loop.kept[edge.alpha] = optimizer.state[edge.alpha]
    return loop
