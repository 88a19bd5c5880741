"""A subnet's files give, without naspipe, bitwise what the run's own layers give."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import naspipe
import search_spaces
from naspipe.export.assembly import find_choices
from naspipe.export.pytorch_form import load_pytorch
from naspipe.streams.stream_file import read_stream
from tests.equivalence.harness import oracle_of
from tests.export import own_layers
from tests.export.outside import outputs_outside
from tests.oracle import bits


def translation_batches(seed, sequence_id):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    batch = {name: torch.randint(4, 40, (3, 7), generator=draw) for name in ("source", "previous")}
    return {**batch, "target": torch.randint(4, 40, (3, 7), generator=draw)}


def image_batches(seed, sequence_id):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(4, 1, 8, 8, generator=draw),
        "target": torch.randint(0, 10, (4,), generator=draw),
    }


def image_space():
    info = {"channels": 1, "height": 8, "width": 8, "classes": 10}
    return search_spaces.build("cv.c1", "tiny", info), image_batches, nn.CrossEntropyLoss()


def translation_space():
    loss = search_spaces.defaults("nlp.c3", "tiny").loss()
    space = search_spaces.build("nlp.c3", "tiny", {"vocabulary": 40, "padding": 1})
    return space, translation_batches, loss


def own_space():
    return own_layers.space, own_layers.batches, nn.CrossEntropyLoss()


def trained(directory, made, steps=3):
    space, data, loss = made
    return naspipe.train(
        space, data, loss, steps=steps, lr=0.01, seed=1, run_dir=directory / "run"
    ), data  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run, of which tests only read."""
    return trained(tmp_path_factory.mktemp("own"), own_space(), steps=2)[0]


def expected_outputs(run, data, loss, choices):
    """What the plain loop's layers give in evaluation mode, after the same steps."""
    oracle = oracle_of(run.space, 1, "SGD", 0.01)
    torch.set_num_threads(1)
    for y, subnet in enumerate(read_stream(run.directory.stream)):
        oracle.step(y, run.space.chain(subnet), data(1, y), loss)
    state, batch = (), data(1, 0)
    with torch.no_grad():
        for block, candidate in enumerate(run.space.chain(choices)):
            module = oracle.layer(block, candidate).eval()
            out = module(*state, *(batch[name] for name in run.space.fields(block)))
            state = out if isinstance(out, tuple) else (out,)
    return state


CASES = {"images": image_space, "translation": translation_space, "own": own_space}


def test_outside_naspipe_the_outputs_are_the_plain_loop_s(tmp_path):
    """Nothing but torch is needed, also where a user's module imports naspipe for its space."""
    given, expected = {}, {}
    for name, make in CASES.items():
        made, out = make(), tmp_path / name / "out"
        run, data = trained(tmp_path / name, made)
        choices = find_choices(run, "last")
        done = naspipe.export_subnet(run, choices, out, data=data)
        assert done.is_checked and done.untrained == ()
        assert done.needs == ()
        given[out] = {key: value for key, value in data(1, 0).items() if key != "target"}
        expected[out] = [bits(t) for t in expected_outputs(run, data, made[2], choices)]
    found = outputs_outside(given)
    assert {out: [bits(t) for t in tensors] for out, tensors in found.items()} == expected
    assert found


def test_every_candidate_can_be_exported(tmp_path):
    """Each operation of both families and each activation, in subnets that share no layer."""
    for made in (image_space(), translation_space()):
        space, data, _ = made
        run, _ = trained(tmp_path / space.name, made, steps=1)
        count = space.candidate_counts[0]
        for start in range(0, count, len(space.candidate_counts)):
            choices = [(start + i) % count for i in range(len(space.candidate_counts))]
            out = tmp_path / space.name / str(start)
            assert naspipe.export_subnet(run, choices, out, data=data).is_checked


def test_layers_that_were_never_trained_have_their_first_weights(tmp_path):
    run, data = trained(tmp_path, own_space(), steps=1)
    (used,) = read_stream(run.directory.stream)
    other = ((used[0] + 1) % 2, 1 - used[1])
    done = naspipe.export_subnet(run, other, tmp_path / "out", data=data)
    assert done.untrained == (f"0.{other[0]}", f"1.{other[1]}")
    oracle = oracle_of(run.space, 1, "SGD", 0.01)
    found = load_pytorch(tmp_path / "out").block0
    for name, tensor in oracle.layer(1, other[0]).state_dict().items():
        assert bits(found.state_dict()[name]) == bits(tensor)


def test_what_a_module_was_is_there_again(tmp_path, run):
    naspipe.export_subnet(run, (1, 0), tmp_path / "out")
    loaded = load_pytorch(tmp_path / "out")
    again = loaded.block0
    assert type(again).__name__ == "Scaled" and again.activation is torch.tanh
    assert again.low == float("-inf") and str(again.negative_zero) == "-0.0"
    assert again.table == {"gain": (0.5, [1, 2]), 3: None} and again.dtype is torch.float32
    assert again.same is again.inner[0] or again.same.weight is again.inner[0].weight
    assert "kept" not in again.state_dict() and again.nothing is None
    assert not loaded.stem.bias.requires_grad and loaded.head.weight.requires_grad
    assert loaded.input_names == ("input",)
    assert json.loads((tmp_path / "out/model.json").read_text())["choices"] == [1, 0]


@pytest.mark.parametrize(("text", "line"), [("first", 0), ("0", 0), ("1", 1), ("last", -1)])
def test_subnets_of_the_stream(run, tmp_path, text, line):
    rows = [[0, 0], [1, 1], [2, 0]]
    stream = tmp_path / "stream.jsonl"
    stream.write_text("".join(f"{row}\n" for row in rows))
    recorded = SimpleNamespace(directory=SimpleNamespace(stream=stream), space=run.space)
    assert list(find_choices(recorded, text)) == rows[line]


@pytest.mark.parametrize(
    ("text", "choices"), [("0,1", (0, 1)), ("2,0,", (2, 0)), (" 1, 1", (1, 1))]
)
def test_subnets_by_their_choices(run, text, choices):
    assert find_choices(run, text) == choices


@pytest.mark.parametrize("text", ["2", "best", "0,1,2", "5,0", "-1", "", "0,x"])
def test_subnets_that_are_none(run, text):
    with pytest.raises(naspipe.ConfigError, match=r"expected"):
        find_choices(run, text)
