"""An elastic layer as a block of a space: its options, its label, and what is refused."""

from __future__ import annotations

import pytest

import naspipe as npp
from naspipe.config.blocks import Block, Elastic, Shared
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.space import Space


def made(**settings):
    return Elastic("fc", list, settings or {"width": [4, 8], "kernel": [1, 3, 5]})


def test_options_are_the_product_of_the_settings():
    block = made()
    assert block.num_options == 6 and len(block.candidates) == 1
    assert [block.text(option) for option in range(6)] == ["4,1", "4,3", "4,5", "8,1", "8,3", "8,5"]
    for option in range(6):
        assert block.option(block.setting(option)) == option
        assert block.candidate(option) == 0
    assert block.setting(4) == {"width": 8, "kernel": 3}
    called = Elastic(
        "a", list, {"width": [2]}, apply=lambda module, x, *, width: (module, x, width)
    )
    assert called.forward_of("module", 0)("x") == ("module", "x", 2)


def chain():
    wide = {"width": [4, 8, 16]}
    return Space(
        "mine",
        [
            Shared("stem", list), Elastic("one", list, wide, "lag(2)"), Block([list, dict]),
            Elastic("two", list, {**wide, "heads": [1, 2]}), Elastic("three", list, {"w": [1, 9]}),
        ],
    )  # fmt: skip


def test_one_layer_whatever_the_option():
    space = chain()
    assert space.labels == ("stem", "one", "1", "two", "three")
    assert space.candidate_counts == (3, 2, 6, 2)
    subnet = space.subnet(FIRST_STREAM, 7, space.chain((2, 1, 5, 0)))
    assert subnet.chain == (0, 2, 1, 5, 0) and subnet.candidates == (0, 0, 1, 0, 0)
    layers = [subnet.layer(block) for block in range(5)]
    assert layers[3] == LayerId(FIRST_STREAM, 3, 0) and layers[2].candidate == 1
    assert subnet.options(layers[:2]) == (0, 2)
    labels = [space.option_label(*each) for each in enumerate(subnet.chain)]
    assert labels == ["stem", "one[16]", "1.1", "two[16,2]", "three[1]"]
    assert space.layer("two") == LayerId(FIRST_STREAM, 3, 0)
    assert space.shared_rules["one"] == npp.Lag(2)
    assert space.stays == (True, True, False, False, False)
    assert space.with_rules({"two": npp.Lag(1)}).blocks[3].rule == npp.Lag(1)
    assert repr(space).startswith(
        "<Space mine: 1 choice blocks of 2 candidates, width of 3, heads of 2, w of 2, stem exact"
    )
    with pytest.raises(ConfigError, match=r"space mine has no layer '0.0'"):
        space.layer("0.0")


def test_a_space_without_elastic_layers_carries_nothing():
    space = Space("plain", [Shared("stem", list), Block([list, dict])])
    assert space.decisions is None
    subnet = space.subnet(FIRST_STREAM, 0, space.chain((1,)))
    assert subnet.candidates == () and subnet.options([subnet.layer(1)]) == ()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Elastic("3", list, {"w": [1]}), "elastic layer '3': expected a name of letters"),
        (lambda: Elastic("a", list, {}), "elastic layer a: expected settings as in"),
        (lambda: Elastic("a", list, [4, 8]), "elastic layer a: expected settings as in"),
        (lambda: made(w=[]), "elastic layer fc, setting w: expected a list of values"),
        (lambda: made(w="48"), "elastic layer fc, setting w: expected a list of values"),
        (lambda: made(w=[4, 4]), "expected numbers, .* all different, found a value twice"),
        (lambda: made(w=[[4]]), r"found the value \[4\]"),
        (lambda: made(**{"a b": [1]}), "expected the name of a setting as a keyword"),
        (lambda: Elastic("a", list, {"w": [1]}, cut=3), "expected cut to be a function"),
        (lambda: Elastic("a", list, {"w": [1]}, setings={}), "did you mean settings"),
        (lambda: made(a=list(range(200)), b=list(range(200))), "have 40000 values together"),
        (lambda: made(w=[1]).cut_of([], 0), "expected Elastic.* or a method cut of its list"),
        (lambda: Space("s", [made(w=[1, 2]), Elastic("two", list, {"w": [1, 3]})]),
         r"layer two: expected the setting w to have the values of layer fc, \[1, 2\], found"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(make, said):
    with pytest.raises(ConfigError, match=said) as found:
        make()
    assert "\n" not in str(found.value)
