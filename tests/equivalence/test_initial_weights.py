"""Runs that begin with given weights: the bits of a plain loop that begins with them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import naspipe as npp
from naspipe.api import initial_weights
from naspipe.api.initial_weights import begin_with
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, oracle_of, plain_torch
from tests.faults.helpers import Calm, Ends, fail
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()


def train(path, init_from=None, space=None, data=spaces.vectors, **more):
    more = {"steps": 8, "seed": 2, "lr": 0.05, **more}
    space = spaces.mixed() if space is None else space
    return npp.train(space, data, LOSS, run_dir=path, init_from=init_from, **more)


def begun(space, given):
    """Plain factories whose modules have the given values, by label and name."""

    def of(block, number, factory):
        def make():
            module, label = factory(), space.label(block, number)
            mine = {n.removeprefix(f"{label}."): v for n, v in given.items()
                    if n.startswith(f"{label}.")}  # fmt: skip
            if mine:
                module.load_state_dict(mine)
            return module

        return make

    return [
        [of(block, number, factory) for number, factory in enumerate(each.candidates)]
        for block, each in enumerate(space.blocks)
    ]


def assert_begun_with(run, space, given):
    """A plain loop whose factories load what was given."""
    oracle = oracle_of(space, 2, "SGD", 0.05)
    oracle.factories = begun(space, given)
    with plain_torch():
        for y, choices in enumerate(read_stream(run.directory.stream)):
            oracle.step(y, space.chain(choices), spaces.vectors(2, y), LOSS)
    assert_same_bits(run, oracle)


def state_of(space, skip=()):
    """A state dict of all layers, with values of its own."""
    torch.manual_seed(3)
    return {
        f"{space.label(block, number)}.{name}": value
        for block, each in enumerate(space.blocks)
        for number, factory in enumerate(each.candidates)
        for name, value in factory().state_dict().items()
        if space.label(block, number) not in skip
    }


def of_run(run):
    found = {}
    for block, each in enumerate(run.space.blocks):
        for number in range(len(each.candidates)):
            try:
                module = run._load(run.space.layer(run.space.label(block, number)), False)
            except npp.ConfigError:
                continue
            label = run.space.label(block, number)
            found |= {f"{label}.{name}": v for name, v in module.state_dict().items()}
    return found


def test_bits_of_a_run_that_begins_with_another(tmp_path):
    """Also behind a failure, on other stages; layers that the other never used are drawn."""
    first = train(tmp_path / "first", steps=3)
    given = of_run(first)
    untrained = [label for label in ("0.0", "0.1", "1.0", "1.1", "2.0") if f"{label}.norm.weight"
                 not in given]  # fmt: skip
    assert untrained
    how = {
        "execution": {"checkpoint_every": 2, "window": 2}
    }  # the failure comes after a checkpoint
    path = tmp_path / "second"
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(path, first, data=Ends(spaces.vectors, 6, fail, tmp_path / "marker"), stages=2, **how)
    with pytest.raises(npp.ConfigError, match="is another run: its weights is"):
        train(path, data=Calm(spaces.vectors), resume=True, **how)
    run = train(path, tmp_path / "first", data=Calm(spaces.vectors), resume=True, **how)
    assert run.manifest["life"]["first"][0] > 0
    said = run.manifest["init_from"]
    assert said["from"] == str(tmp_path / "first") and said["layers"] > 5
    assert said["digest"] == run.manifest["definition"]["weights"]
    assert_begun_with(run, spaces.mixed(), given)


@pytest.mark.parametrize("form", ["dict", "safetensors", long("pt")])
def test_bits_of_a_state_dict(tmp_path, form):
    space = spaces.mixed()
    given = state_of(space)
    source = given
    if form == "safetensors":
        save_file(given, source := tmp_path / "given.safetensors")
    elif form == "pt":
        torch.save(given, source := tmp_path / "given.pt")
    run = train(tmp_path / "run", source, stages=2 if form == "dict" else 1)
    assert_begun_with(run, space, given)


def test_bits_of_modules(tmp_path):
    """Of a plain network by positions; of some layers of a supernet by labels."""
    torch.manual_seed(5)
    parts = [nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)]
    other = npp.chain([nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)])
    given = {f"{n}.0.{key}": v.clone() for n, part in enumerate(parts)
             for key, v in part.state_dict().items()}  # fmt: skip
    for number, source in enumerate((parts, nn.Sequential(*parts))):
        run = train(tmp_path / f"chain-{number}", source, other, stages=number + 1)
        assert_begun_with(run, other, given)
    stem = nn.Linear(16, 24)
    run = train(tmp_path / "stem", {"stem": stem})
    assert_begun_with(
        run, spaces.mixed(), {f"stem.{k}": v.clone() for k, v in stem.state_dict().items()}
    )


def test_later_changes_of_what_was_given_do_not_reach_the_run():
    given = state_of(spaces.mixed())
    space, said = begin_with(spaces.mixed(), given)
    given["stem.bias"].zero_()
    assert space.blocks[0].factory().bias.any()
    assert begin_with(spaces.mixed(), given)[1]["digest"] != said["digest"]


def test_a_run_without_says_nothing(tmp_path):
    run = train(tmp_path / "run", steps=2)
    assert run.manifest["init_from"] == {} and "weights" not in run.manifest["definition"]


def test_a_broken_rule_is_seen(tmp_path, monkeypatch):
    """Layers that are not filled."""
    monkeypatch.setattr(initial_weights._Filled, "__call__", lambda self: self.factory())
    run = train(tmp_path / "run", state_of(spaces.mixed()))
    with pytest.raises(AssertionError):
        assert_begun_with(run, spaces.mixed(), state_of(spaces.mixed()))


def changed(**more):
    given = {**state_of(spaces.mixed()), **more}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "init_from: expected a run, its directory, a state dict, .* found int"),
        ({"a": 3}, "a state dict: expected tensors by name, found a of type int"),
        ({"stem": nn.Linear(2, 2), "head": 3}, "a module for each label, found 'head' with a int"),
        ({"stem": nn.Linear(2, 2)}, r"stem.weight of shape \(24, 16\), found \(2, 2\)"),
        ({"tail": nn.Linear(2, 2)}, r"expected names such as .*, found tail.bias \(2 of 2 are"),
        (changed(**{"stem.bias": None}), "expected stem.bias, found nothing of that name"),
        (changed(**{"head.bias": torch.zeros(3)}), r"head.bias of shape \(10,\), found \(3,\)"),
        (changed(**{"3.9.bias": torch.zeros(3)}), r"found 3.9.bias \(1 of \d+ are unknown\)"),
        (nn.Linear(2, 2), r"a Linear: expected names such as"),
        ("nowhere.safetensors", "nowhere.safetensors: expected a run directory, or a state dict"),
        ("nowhere.pt", r"nowhere.pt: .* found FileNotFoundError"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, source, message):
    with pytest.raises(npp.ConfigError, match=message) as caught:
        train(tmp_path / "run", source)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_files_that_hold_code_are_refused(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(npp.ConfigError, match="tensors alone"):
        train(tmp_path / "run", tmp_path / "module.pt")


def test_a_run_that_did_not_finish_is_refused(tmp_path):
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(tmp_path / "one", data=Ends(spaces.vectors, 2, fail, tmp_path / "marker"))
    with pytest.raises(npp.ConfigError, match="expected a run that is complete, found one that is"):
        train(tmp_path / "two", tmp_path / "one")
