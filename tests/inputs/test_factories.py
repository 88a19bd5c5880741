"""Factories that are none, and those of one block that make the same layer twice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import naspipe as npp
from naspipe.checks.sketched import SketchedLayers
from naspipe.checks.space import alike_note
from naspipe.config.errors import ConfigError
from tests.equivalence import spaces


def note(*blocks):
    space = npp.Space("mine", blocks)
    return alike_note(space, SketchedLayers(space))


class Conv(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, kernel, padding=kernel // 2)


class Keeps(nn.Module):
    """Two of them differ by what they keep, and not in their description."""

    def __init__(self, kept):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self._kept = kept


class Filters(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.register_buffer("values", torch.tensor(values))


@dataclass
class Sizes:
    width: int


def late():
    candidates = []
    for k in (3, 5):
        candidates.append(lambda: Conv(k))  # noqa: B023
    return candidates


def test_a_loops_variable_that_is_read_too_late():
    once = npp.Block([nn.Identity, *late()])
    assert note(once, npp.Block([lambda k=k: Conv(k) for k in (3, 5)]), once, once) == (
        "block 0: candidates 1 and 2 are alike (and so in 2 more blocks): each makes Conv( (conv): "
        "Conv2d(8, 8, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2)) ); a factory made in a "
        "loop reads the loop's variable when it is called, so write lambda k=k: ...; if one layer "
        "twice is meant, say Block(..., alike=True)"
    )


def test_a_loops_variable_that_a_kept_function_reads_too_late():
    def times(late):
        for k in (2, 3):
            kept = (lambda y: y * k) if late else (lambda y, k=k: y * k)  # noqa: B023
            yield partial(Keeps, kept)
            yield lambda k=k: Keeps(lambda y: y * k)

    said = note(npp.Block(list(times(late=True))))
    assert said.startswith("block 0: candidates 0 and 2 are alike: each makes Keeps(")
    assert note(npp.Block(list(times(late=False)))) is None


def test_a_loops_variable_has_its_name_and_a_long_layer_is_whole():
    def wide():
        for width in (4, 8):
            yield lambda: nn.Sequential(*[nn.Linear(width, width) for _ in range(3)])  # noqa: B023

    said = note(npp.Block(list(wide())))
    assert said.count("Linear(in_features=8, out_features=8, bias=True)") == 3
    assert "; a factory made in" in said and "lambda width=width: ...;" in said


def test_all_that_are_alike_are_listed():
    three = [lambda: nn.Linear(8, 8) for _ in range(3)]
    assert "block 0: candidates 0, 2 and 4 are alike: each makes Linear(" in note(
        npp.Block([three[0], nn.Identity, three[1], nn.ReLU, three[2], nn.ReLU])
    )


def test_two_that_are_meant_to_be_alike():
    assert note(npp.Block([nn.Identity, nn.Identity], alike=True)) is None
    assert note(npp.Block([nn.Identity, nn.Identity])) is not None


@pytest.mark.parametrize(
    ("one", "other"), [(3, 3), (F.relu, F.relu), (Sizes(3), Sizes(3)), ({"a": [1]}, {"a": [1]})]
)
def test_the_same_kept_is_alike(one, other):
    assert note(npp.Block([lambda: Keeps(one), lambda: Keeps(other)])) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (3, 5), (3, 3.0), (F.relu, F.gelu), (Sizes(3), Sizes(5)), (object(), object()),
        ([1], [1, 2]), (torch.ones(2), torch.ones(2)), (partial(max, 1), partial(max, 1)),
    ],
)  # fmt: skip
def test_what_differs_or_might_is_not(one, other):
    assert note(npp.Block([lambda: Keeps(one), lambda: Keeps(other)])) is None


@pytest.mark.parametrize(
    "made",
    [
        [lambda: nn.MultiheadAttention(8, 2), lambda: nn.MultiheadAttention(8, 4)],
        [lambda: nn.Conv2d(8, 8, 3), lambda: nn.Conv2d(8, 8, 3, dilation=2)],
        [lambda: Filters([1.0]), lambda: Filters([2.0])],
        [nn.ReLU, nn.GELU],
        [lambda: 1 / 0, lambda: 1 / 0],
    ],
)
def test_layers_that_differ(made):
    assert note(npp.Block(made)) is None


@pytest.mark.parametrize(
    "make", [lambda: nn.LSTM(8, 8), lambda: nn.BatchNorm2d(8), lambda: nn.MultiheadAttention(8, 2)]
)
def test_layers_of_torchs_that_are_alike(make):
    assert note(npp.Block([lambda: make(), lambda: make()])) is not None


def test_a_factory_is_tried_once_for_all_blocks_that_have_it():
    """Twice over, so that one which makes nothing anew is known."""
    made = []

    def conv(kernel):
        made.append(kernel)
        return Conv(kernel)

    blocks = [npp.Block([partial(conv, 1), lambda: conv(3), lambda k=5: conv(k)]) for _ in range(5)]
    space = npp.Space("mine", blocks)
    layers = SketchedLayers(space)
    for block in range(5):
        for candidate in range(3):
            assert layers.module(block, candidate).conv.weight.is_meta
    assert made == [1, 1, 3, 3, 5, 5]


def test_a_module_in_the_place_of_a_factory():
    with pytest.raises(ConfigError) as caught:
        npp.Space("mine", [npp.Block([nn.Identity]), npp.Block([nn.Identity, nn.Linear(8, 8)])])
    assert str(caught.value) == (
        "space mine, block 1: expected candidate 1 to be a factory, found the module Linear; wrap "
        "it: lambda: Linear(...)"
    )
    with pytest.raises(ConfigError, match=r"layer stem: .* the module Linear; wrap it: lambda:"):
        npp.Space("mine", [npp.Shared("stem", nn.Linear(8, 8))])


def test_what_makes_nothing():
    with pytest.raises(ConfigError, match=r"block 0: expected candidate 0 .* value of type int"):
        npp.Space("mine", [npp.Block([3])])


def shares(kind, kept):
    """A factory of layers with one tensor: the same object, or another one in its memory."""
    layer = nn.BatchNorm1d(16)
    if kind == "object":
        layer.register_buffer("running_mean", kept.setdefault("made", layer.running_mean))
    else:
        layer.weight = nn.Parameter(kept.setdefault("made", layer.weight.data))
    return layer


@pytest.mark.parametrize(("kind", "what"), [("object", "buffer"), ("memory", "parameter")])
@pytest.mark.parametrize("is_shared", [True, False])
def test_layers_that_have_a_tensor_in_common(tmp_path, kind, what, is_shared):
    """The first one's factory makes it, so neither hands out what was made before."""
    kept = {}
    one, other = (lambda: shares(kind, kept)), (lambda: shares(kind, kept))
    blocks = [npp.Block([make, lambda: nn.Linear(16, 16)]) for make in (one, other)]
    if is_shared:
        blocks = [npp.Shared("one", one), npp.Shared("other", other)]
    space = npp.Space("mine", [*blocks, npp.Shared("head", lambda: nn.Linear(16, 10))])
    names = "one and other" if is_shared else "0.0 and 1.0"
    said = f"layers {names} share one {what}.*let each factory make its own"
    with pytest.raises(ConfigError, match=said):
        npp.train(
            space, spaces.vectors, nn.CrossEntropyLoss(), steps=2, run_dir=tmp_path / "run"
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_chain_of_modules_that_have_a_tensor_in_common():
    """Copies would each have their own, and nobody would say so."""
    embedding, head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
    head.weight = embedding.weight
    with pytest.raises(ConfigError, match=r"layers 0.0 and 2.0 share one parameter"):
        npp.chain([embedding, nn.ReLU(), head])
    act = nn.ReLU()
    assert len(npp.chain([act, nn.Linear(8, 8), act])) == 3
