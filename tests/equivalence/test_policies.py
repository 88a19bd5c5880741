"""bsp, asp and sequential on real processes: what each promises, and what it does not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import naspipe
from naspipe.config.errors import ConfigError
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, oracle_of, plain_loop
from tests.keyed_draws import keyed_seed
from tests.oracle import PlainLoop
from tests.thinned import long

STEPS = 18
LOSS = nn.CrossEntropyLoss()


class BulkLoop(PlainLoop):
    """GPipe's loop: gradients of a whole bulk at the versions before it, then all the steps."""

    def bulk(self, first, chains, batches, loss_fn):
        before = {
            (block, choice): copy.deepcopy(self.layer(block, choice))
            for chain in chains
            for block, choice in enumerate(chain)
        }
        gradients = []
        for y, (chain, batch) in enumerate(zip(chains, batches, strict=True), first):
            state = ()
            for block, choice in enumerate(chain):
                torch.manual_seed(keyed_seed(f"{self.seed}/{y}/{block}/0"))
                aliases = [t.view_as(t) for t in state]
                fields = (batch[name] for name in self.fields[block])
                out = before[block, choice](*aliases, *fields)
                state = out if isinstance(out, tuple) else (out,)
            loss = loss_fn(*state, batch["target"])
            loss.backward()
            self.losses.append(loss.detach().clone())
            used = [before[pair] for pair in enumerate(chain)]
            gradients.append([[p.grad for p in module.parameters()] for module in used])
            for module in used:
                module.zero_grad(set_to_none=True)
        for chain, of_subnet in zip(chains, gradients, strict=True):
            for pair, of_layer in zip(enumerate(chain), of_subnet, strict=True):
                for p, gradient in zip(self.layers[pair].parameters(), of_layer, strict=True):
                    p.grad = gradient
                if optimizer := self.optimizers[pair]:
                    optimizer.param_groups[0]["lr"] = self.lr
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
        for pair, module in before.items():
            newest = dict(self.layers[pair].named_buffers())
            for name, buffer in module.named_buffers():
                newest[name].copy_(buffer)


def bulk_loop(run, space, data, loss, bulk):
    plain = oracle_of(space, 1, "SGD", 0.05, {"momentum": 0.9})
    loop = BulkLoop(plain.factories, plain.fields, {}, 1, "SGD", 0.05, {"momentum": 0.9})
    chains = [space.chain(choices) for choices in read_stream(run.directory.stream)]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        for first in range(0, len(chains), bulk):
            part = chains[first : first + bulk]
            batches = [data(1, y) for y in range(first, first + len(part))]
            loop.bulk(first, part, batches, loss)
    finally:
        torch.use_deterministic_algorithms(False)
    return loop


def train(path, policy, stages, bulk=0, **execution):
    space = spaces.mixed().with_rules({"stem": naspipe.Exact()})
    return naspipe.train(
        space, spaces.vectors, LOSS, steps=STEPS, lr=0.05, seed=1, stages=stages,
        optimizer_options={"momentum": 0.9}, policy=policy, bulk=bulk, run_dir=path,
        execution=execution,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "bulk", "execution"),
    [long(1, 4, {}), (2, 4, {"recompute": True}), (3, 4, {}), (2, 5, {"memory_budget": "1x"})],
)
def test_bsp_trains_each_bulk_at_the_versions_before_it(tmp_path, stages, bulk, execution):
    run = train(tmp_path / "run", "bsp", stages, bulk, **execution)
    assert_same_bits(run, bulk_loop(run, run.space, spaces.vectors, LOSS, bulk))


def test_a_bulk_is_as_large_as_there_are_stages(tmp_path):
    run = train(tmp_path / "run", "bsp", 3)
    assert_same_bits(run, bulk_loop(run, run.space, spaces.vectors, LOSS, 3))
    other = train(tmp_path / "other", "bsp", 2)
    assert run.losses[3:] != other.losses[3:], "so its result depends on the number of stages"


def test_sequential_has_the_bits_of_the_plain_loop_and_one_subnet_under_way(tmp_path):
    run = train(tmp_path / "run", "sequential", 2)
    loop = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05,
        options={"momentum": 0.9},
    )  # fmt: skip
    assert_same_bits(run, loop)


def test_asp_on_one_stage_is_sequential_and_trains_on_more(tmp_path):
    one = train(tmp_path / "one", "asp", 1)
    loop = plain_loop(
        one.space, spaces.vectors, LOSS, one, seed=1, optimizer="SGD", lr=0.05,
        options={"momentum": 0.9},
    )  # fmt: skip
    assert_same_bits(one, loop)
    three = train(tmp_path / "three", "asp", 3, recompute=True)
    assert len(three.losses) == STEPS and three.losses != one.losses


def test_asp_keeps_no_budget(tmp_path):
    with pytest.raises(ConfigError, match="memory_budget: expected the policy csp"):
        train(tmp_path / "run", "asp", 2, memory_budget="3x")
    assert not (tmp_path / "run").exists()
