"""Runs a space through naspipe and through the oracle, and compares every bit."""

from __future__ import annotations

import random
from contextlib import contextmanager
from functools import partial
from itertools import product

import torch
from torch.nn import functional

import naspipe
from naspipe.config.blocks import Elastic
from naspipe.config.partition import make_partition
from naspipe.config.rules import Every, Frozen, Lag
from naspipe.plan.partitions import PLACEMENTS
from naspipe.store.checkpoints import read_checkpoint
from naspipe.streams.stream_file import read_stream
from naspipe.worker.checkpoints.restored import from_raw
from naspipe.worker.layers import layer_store
from tests.equivalence.sliced_loop import SlicedLoop
from tests.oracle import PlainLoop, bits


def oracle_of(space, seed, optimizer, lr, options=None, bf16=False, device="cpu", **recipe):
    rules = {}
    for block, rule in enumerate(space.rules):
        if isinstance(rule, Lag | Every):
            own = {"momentum": rule.momentum, "lr": rule.lr}
            rules[block] = own | (
                {"every": rule.steps} if isinstance(rule, Every) else
                {"lag": rule.subnets, "over": rule.over, "predict": rule.predicts}
            )  # fmt: skip
        elif isinstance(rule, Frozen):
            rules[block] = "frozen"
    settings = {
        block: (
            each.apply,
            [dict(zip(each.settings, row, strict=True)) for row in product(*values)],
        )
        for block, each in enumerate(space.blocks)
        if isinstance(each, Elastic) and (values := each.settings.values())
    }
    sliced = {b for b, each in enumerate(space.blocks) if getattr(each, "step", "") == "slice"}
    kind = partial(SlicedLoop, sliced) if sliced else PlainLoop
    return kind(
        [block.candidates for block in space.blocks],
        [space.fields(block) for block in range(len(space))],
        rules, seed, optimizer, lr, options, bf16, device, settings=settings, **recipe,
    )  # fmt: skip


def plain_loop(space, data, loss, run, *, seed, optimizer, lr, options=None, bf16=False, **recipe):
    """The oracle, trained on the stream that a run recorded; ``recipe`` is more of its fields."""
    recipe.pop("feedback_delay", None)  # how the stream came about
    recipe.pop("label_smoothing", None)  # in the loss
    recipe.pop("parameter_groups", None)  # split says them as torch has them
    recipe_weight = recipe.pop("weight", "passes")
    kind, number, average = (*recipe.pop("passes", "one").split(":"), "", "")[:3]
    oracle = oracle_of(space, seed, optimizer, lr, options, bf16, **recipe)
    count = int(number or 1) + 2 * (kind == "sandwich")
    how = {
        "averages_loss": kind == "accumulate" or average == "passes",
        "averages_users": average == "users",
        "weighs_items": recipe_weight == "items",
    }
    if kind == "sandwich":
        how["distill"] = lambda out, taught: functional.cross_entropy(out, taught.softmax(1))
    chains = [space.chain(choices) for choices in read_stream(run.directory.stream)]
    with plain_torch():
        for step in range(len(chains) // count):
            numbers = range(step * count, (step + 1) * count)
            batches = [data(seed, step if kind in ("sandwich", "fair") else y) for y in numbers]
            passes = [(chains[y], batch) for y, batch in zip(numbers, batches, strict=True)]
            oracle.take(step, passes, loss, **how)
    return oracle


@contextmanager
def plain_torch():
    """One thread and deterministic algorithms, as the stages have them."""
    threads, was = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was)
        torch.set_num_threads(threads)


def assert_same_bits(run, oracle):
    """Losses, parameters, buffers and optimizer state: all there, nothing more, every bit."""
    found = [int(loss.bits, 16) for loss in run.directory.read_losses()]
    expected = [int.from_bytes(bits(loss)[2], "little") for loss in oracle.losses]
    differ = [y for y, pair in enumerate(zip(found, expected, strict=True)) if len(set(pair)) > 1]
    assert not differ, f"first loss that differs: subnet {differ[0]}"
    checkpoint = read_checkpoint(run.directory.checkpoint("final"))
    ours = {name: bits(from_raw(raw)) for name, raw in checkpoint.tensors.items()}
    ours |= {name: ("scalar", value) for name, value in checkpoint.scalars.items()}
    theirs = {}
    for (block, candidate, name), value in oracle.tensors().items():
        key = f"0/{run.space.label(block, candidate)}/{name}"
        theirs[key] = bits(value) if isinstance(value, torch.Tensor) else ("scalar", value)
    alone = sorted(ours.keys() ^ theirs.keys())
    assert not alone, f"{len(alone)} tensors that one side alone has, among them {alone[:5]}"
    wrong = [name for name in theirs if ours[name] != theirs[name]]
    assert not wrong, f"{len(wrong)} tensors differ, among them {wrong[:5]}"


def check(
    tmp_path, space, data, loss, *, stages=(1, 3), steps=20, seed=1, optimizer="SGD",
    lr=0.05, options=None, bf16=False, sampler="uniform", execution=None, recipe=None, **plain,
):  # fmt: skip
    """Train on each number of stages and compare each with one plain loop; returns the runs.

    ``plain`` is what only the loop is given.
    """
    runs = []
    oracle = None
    for number in stages:
        run = naspipe.train(
            space, data, loss, steps=steps, seed=seed, optimizer=optimizer, lr=lr,
            optimizer_options=options, sampler=sampler, stages=number,
            run_dir=tmp_path / f"{space.name}-{number}-{len(list(tmp_path.iterdir()))}",
            recipe={"precision": "bf16" if bf16 else "float32", **(recipe or {})},
            execution=execution,
        )  # fmt: skip
        if oracle is None:
            oracle = plain_loop(
                space, data, loss, run, seed=seed, optimizer=optimizer, lr=lr, options=options,
                bf16=bf16, **(recipe or {}), **plain,
            )  # fmt: skip
        assert_same_bits(run, oracle)
        runs.append(run)
    return runs


def restless(monkeypatch, seed=5):
    """Cut every subnet somewhere else, its parts on any stages; parts with shared layers stay.

    Most layers that come back are made anew.
    """

    def placement(subnets, is_shared, costs, num_stages):
        draw, deal = random.Random(seed), random.Random(seed)
        inner = range(1, len(is_shared))

        def cut(subnet):
            bounds = (0, *sorted(draw.sample(inner, num_stages - 1)), len(is_shared))
            stages = [*range(num_stages)]
            free = [part for part in stages if not any(is_shared[slice(*bounds[part:][:2])])]
            for part, stage in zip(free, deal.sample(free, len(free)), strict=True):
                stages[part] = stage
            return make_partition(bounds, stages)

        return cut

    for name in ("balanced", "rotated"):
        monkeypatch.setitem(PLACEMENTS, name, placement)
    monkeypatch.setattr(layer_store, "KEPT_AWAY", 2)
