"""The peers compute what they are said to: their first step is the plain loop's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.config.recipe import Recipe
from naspipe.jobs.workload import Workload
from scripts.peers import ours, two_ranks
from scripts.peers.work import Supernet, Work, made
from tests.equivalence import spaces
from tests.equivalence.harness import oracle_of


def named():
    return Workload.of(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), recipe=Recipe(), steps=1
    )


def test_the_supernet_of_the_peers_has_the_plain_loop_s_layers_and_loss():
    work = named()
    loop = oracle_of(work.space, 0, "SGD", 0.05)
    chain = [0] * len(work.space)
    batch = work.data(0, 0)
    torch.manual_seed(1)
    loss = Supernet(work)(chain, batch)
    for block in range(len(chain)):
        theirs = dict(loop.layer(block, 0).named_parameters())
        assert all(
            torch.equal(p, theirs[name]) for name, p in made(work, block, 0).named_parameters()
        )
    loss.backward()
    assert loss.ndim == 0 and torch.isfinite(loss)


def test_a_fixed_stream_repeats_its_subnet():
    work = Work(space="cv.c3", sampler="fixed", steps=3)
    stream = work.stream(work.named())
    assert len(stream) == 3 and len(set(map(tuple, stream))) == 1
    uniform = Work(space="cv.c3", sampler="uniform", steps=3)
    assert tuple(uniform.stream(uniform.named())[0]) == tuple(stream[0])


def test_lags_of_what_is_timed_have_grown():
    """A run of 60 steps would else wait for the stem all the time, as no longer one does."""
    rules = Work(space="cv.c3", sampler="uniform", steps=60).named().space.shared_rules
    assert rules["stem"].over == 0 < rules["stem"].subnets


@pytest.mark.long
def test_data_parallel_ranks_read_the_first_weights_each_with_its_own_subnet():
    """So the first loss of rank 1 is that of subnet 1 before anything was written, which the
    plain loop never sees."""
    work = Work(space="cv.c3", sampler="uniform", steps=2)
    found = two_ranks.run_ranks("ddp", work)
    cv = work.named()
    loss = Supernet(cv)(cv.space.chain(work.stream(cv)[1]), cv.data(0, 1))
    assert found["losses"] == [pytest.approx(loss.item(), rel=1e-4)]
    assert found["losses"][0] != pytest.approx(ours.plain(work, 1)["losses"][1], rel=1e-4)


@pytest.mark.long
def test_a_rank_that_fails_ends_both():
    with pytest.raises(RuntimeError, match="ddp: a rank failed"):
        two_ranks.run_ranks("ddp", Work(space="cv.c9", sampler="uniform", steps=2))
