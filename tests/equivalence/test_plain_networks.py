"""A plain network trains like a space: on stages and groups, with a stranger's loop's bits."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

import naspipe as npp
import search_spaces
from naspipe.data import open_data
from tests.data.conftest import write_sentences
from tests.equivalence import spaces
from tests.equivalence.harness import check
from tests.oracle import bits
from tests.thinned import long


def network():
    torch.manual_seed(3)
    inner = [part for _ in range(3) for part in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())]
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *inner, nn.Linear(32, 10))


def plain(net, steps, passes):
    """Nothing of naspipe's: one optimizer, one loop."""
    net, loss = deepcopy(net).train(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(passes):
            batch = spaces.vectors(1, step * passes + number)
            (loss(net(batch["input"]), batch["target"]) / passes).backward()
        optimizer.step()
    return net


@pytest.mark.parametrize(("stages", "groups"), [(1, 1), long(2, 1), long(1, 2), (2, 2)])
def test_bits_of_a_strangers_loop(tmp_path, stages, groups):
    net = network()
    run = npp.train(
        npp.chain(net), spaces.vectors, nn.CrossEntropyLoss(), steps=10, seed=1, lr=0.05,
        optimizer_options={"momentum": 0.9}, stages=stages, run_dir=tmp_path / "run",
        recipe={"passes": "accumulate:4"}, execution={"groups": groups},
    )  # fmt: skip
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = plain(net, 10, 4)
    torch.set_num_threads(threads)
    for position, part in enumerate(expected):
        found = run.layer(position, 0).state_dict()
        for name, value in part.state_dict().items():
            assert bits(found[name]) == bits(value), f"{position}.{name}"


def test_bits_of_a_bert_that_guesses_masked_words(tmp_path):
    data = open_data(f"masked:fairseq:{write_sentences(tmp_path)}", max_tokens=40)
    space = search_spaces.build("bert-base", "tiny", data.info)
    loss = search_spaces.defaults("bert-base", "tiny").loss()
    for groups, stages in ((1, (1,)), (2, (1, 2))):
        check(
            tmp_path, space, data, loss, stages=stages, steps=2, optimizer="AdamW", lr=1e-3,
            recipe={"passes": "accumulate:4"}, execution={"groups": groups},
        )  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param("mobilenet-v2", marks=pytest.mark.long), "mobilenet-v3"]
)
def test_gradients_keep_their_strides_from_block_to_block(tmp_path, name):
    """Images are channels last all the way; the gradient of a mean comes channels first."""
    info = {"channels": 1, "height": 28, "width": 28, "classes": 10}

    def images(seed, number):
        torch.manual_seed(1000 * seed + number)
        found = torch.randn(64, 28, 28, 1).permute(0, 3, 1, 2)
        return {"input": found, "target": torch.randint(0, 10, (64,))}

    space = search_spaces.build(name, "tiny", info)
    loss = nn.CrossEntropyLoss()
    for execution in ({}, {"recompute": True}):
        check(tmp_path, space, images, loss, stages=(1, 2), steps=2, execution=execution)


def test_the_modules_stay_as_they_are(tmp_path):
    net = network()
    before = deepcopy(net.state_dict())
    npp.train(
        npp.chain(net), spaces.vectors, nn.CrossEntropyLoss(), steps=2, run_dir=tmp_path / "run"
    )
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        ([], "chain: expected one module or more, found none"),
        ([nn.Linear(2, 2), torch.relu], "found a builtin_function_or_method at position 1"),
        (nn.Linear(2, 2), "expected a Sequential or a list of modules, found a Linear"),
    ],
)
def test_what_is_no_chain(modules, text):
    with pytest.raises(npp.ConfigError, match=text):
        npp.chain(modules)


def test_the_weights_that_it_begins_with_are_part_of_its_definition(tmp_path):
    def train(net, steps, path, **more):
        return npp.train(npp.chain(net), spaces.vectors, nn.CrossEntropyLoss(), steps=steps, seed=1,
                         run_dir=tmp_path / path, **more)  # fmt: skip

    first = train(network(), 2, "one")
    again = train(network(), 2, "two")
    other = network()
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-3
    digests = [run.manifest["definition"]["weights"] for run in (first, again)]
    assert digests[0] == digests[1] == npp.chain(network()).weights != npp.chain(other).weights
    with pytest.raises(npp.ConfigError, match="is another run: its weights is"):
        train(other, 2, "one", resume=True)
    train(network(), 2, "one", resume=True)
