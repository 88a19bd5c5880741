"""Spaces: labels, chains, layers, rules, and what each error says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.blocks import Block, Elastic, Shared
from naspipe.config.errors import ConfigError
from naspipe.config.ids import LayerId
from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.config.space import Space

COUNTS = (3, 1, 2)


def never() -> None:
    raise AssertionError("a factory was called")


def space() -> Space:
    return Space(
        "mine",
        [
            Shared("stem", never, Lag(8)),
            Block([never] * 3),
            Block([never], kind="cell", fields=["mask"]),
            Shared("middle", never, fields=["source", "mask"]),
            Block([never] * 2),
            Shared("head", never),
        ],
    )


def message(call: object, *arguments: object) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)  # type: ignore[operator]
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_a_space_says_of_itself() -> None:
    mine = space()
    assert len(mine) == 6
    assert mine.candidate_counts == COUNTS
    assert mine.labels == ("stem", "0", "1", "middle", "2", "head")
    assert mine.rules == (Lag(8), Exact(), Exact(), Exact(), Exact(), Exact())
    assert mine.shared_rules == {"stem": Lag(8), "middle": Exact(), "head": Exact()}


def test_fields_that_modules_are_given() -> None:
    mine = space()
    fields = [mine.fields(block) for block in range(6)]
    assert fields == [("input",), (), ("mask",), ("source", "mask"), (), ()]
    assert Space("s", [Shared("stem", never, fields=("source",))]).fields(0) == ("source",)


def test_labels_name_layers() -> None:
    mine = space()
    assert mine.label(0, 0) == "stem" and mine.label(4, 1) == "2.1"
    assert mine.layer("stem") == LayerId(0, 0, 0)
    assert mine.layer("0.2") == LayerId(0, 1, 2)
    assert mine.layer("2.1", 3) == LayerId(3, 4, 1)
    for block, entry in enumerate(mine.blocks):
        for candidate in range(len(entry.candidates)):
            assert mine.layer(mine.label(block, candidate)) == LayerId(0, block, candidate)


@pytest.mark.parametrize(
    "label", ["", "0", "0.3", "3.0", "stem.0", "tail", "-1.0", "0.0.0", "0:0.0"]
)
def test_labels_that_name_nothing(label: str) -> None:
    assert message(space().layer, label) == (
        f"space mine has no layer {label!r}: expected BLOCK.CANDIDATE with a block below 3, "
        f"or one of stem, middle, head"
    )


def test_a_space_without_shared_layers() -> None:
    bare = Space("bare", [Block([never])])
    assert "its shared layers (it has none)" in message(bare.layer, "stem")
    assert message(bare.with_rules, {"stem": Exact()}) == (
        "space bare has no shared layer 'stem': expected no rule, as it has none"
    )
    assert bare.shared_rules == {}


@given(st.tuples(*(st.integers(0, count - 1) for count in COUNTS)))
def test_a_chain_has_a_zero_for_each_shared_layer(choices: tuple[int, ...]) -> None:
    chain = space().chain(choices)
    assert chain == (0, choices[0], choices[1], 0, choices[2], 0)


@given(st.lists(st.integers(-2, 4), max_size=5))
def test_choices_that_do_not_fit(choices: list[int]) -> None:
    mine = space()
    wrong = [
        (number, choice)
        for number, (choice, count) in enumerate(zip(choices, COUNTS, strict=False))
        if not 0 <= choice < count
    ]
    if len(choices) != 3:
        assert message(mine.chain, choices) == (
            f"space mine: expected 3 choices, one per choice block, found {len(choices)}"
        )
    elif wrong:
        number, choice = wrong[0]
        assert message(mine.chain, choices) == (
            f"space mine, choice block {number}: expected a choice from 0 to "
            f"{COUNTS[number] - 1}, found {choice}"
        )
    else:
        assert len(mine.chain(choices)) == 6


def test_other_rules_for_shared_layers() -> None:
    mine = space()
    other = mine.with_rules({"stem": Frozen(), "head": Lag(2)})
    assert other.shared_rules == {"stem": Frozen(), "middle": Exact(), "head": Lag(2)}
    assert mine.shared_rules["stem"] == Lag(8)
    assert (other.name, other.labels) == (mine.name, mine.labels)
    assert other.blocks[1] is mine.blocks[1]
    assert other.fields(3) == ("source", "mask")
    assert message(mine.with_rules, {"stem": Exact(), "tail": Exact()}) == (
        "space mine has no shared layer 'tail': expected stem, middle, head"
    )


def test_spaces_that_cannot_be() -> None:
    assert message(Block, []) == "a block needs at least one candidate, found none"
    assert message(Space, "mine", []) == "space mine: expected at least one block, found none"
    twice = [Shared("stem", never), Block([never]), Shared("stem", never)]
    assert message(Space, "mine", twice) == (
        "space mine: two shared layers are called 'stem'; rename one"
    )


@pytest.mark.parametrize("name", ["", "3", "3.1", "a.b", "a b", "a/b", "é", "a\n"])
def test_names_that_logs_could_not_hold(name: str) -> None:
    assert message(Shared, name, never) == (
        f"shared layer {name!r}: expected a name of letters, digits, - and _"
    )


def test_candidates_may_come_from_a_generator() -> None:
    assert len(Block(never for _ in range(4)).candidates) == 4
    assert Space("s", (Block([never]) for _ in range(3))).candidate_counts == (1, 1, 1)


def test_a_chain_in_parts() -> None:
    first, second, third = space().cut(["1", 4])
    assert [first.name, second.name, third.name] == ["mine-0", "mine-1", "mine-2"]
    assert first.labels == ("stem", "0") and first.rules == (Lag(8), Exact())
    assert second.labels == ("0", "middle") and third.labels == ("0", "head")
    assert [part.candidate_counts for part in (first, second, third)] == [(3,), (1,), (2,)]
    assert [part.fields(0) for part in (first, second, third)] == [("input",), ("mask",), ()]
    assert first.takes_input and not second.takes_input and not third.takes_input
    (whole,) = space().cut([])
    assert whole.labels == space().labels


def test_only_the_first_part_carries_the_proof_of_the_whole() -> None:
    class Shown:
        def prove(self, batch: object) -> dict[str, object]:
            return {}

    mine = Space("proved", space().blocks, proof=Shown())
    assert [part.proof is mine.proof for part in mine.cut([2, 3])] == [True, False, False]


@pytest.mark.parametrize("at", [[0], [6], [-1], [2, 2], [4, 2], [1, "stem"]])
def test_places_that_a_chain_cannot_be_cut_at(at: list[int | str]) -> None:
    assert "expected rising places from 1 to 5" in message(space().cut, at)
    assert "no block '9' to be cut at: expected one of stem, 0" in message(space().cut, ["9"])


@pytest.mark.parametrize(
    ("name", "blocks", "said"),
    [
        ("x", [dict], r"space x: expected npp.Block or npp.Shared in place 0, found a type; write"),
        ("x", [Block([dict]), [dict, list]], r"in place 1, found a list; write npp.Block"),
        ("x", [3], r"found a int; write npp.Block\(\[...\]\) or npp.Shared"),
        ([Block([dict])], [], r"a space: expected a name first, .*found a list"),
    ],
)
def test_what_is_no_block(name: object, blocks: list[object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Space(name, blocks)


def test_a_rule_in_words() -> None:
    assert Shared("stem", dict, rule="lag(2)").rule == Lag(2)
    with pytest.raises(ConfigError, match="lagg"):
        Shared("stem", dict, rule="lagg(2)")


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda fields: Shared("stem", never, fields=fields), "layer stem"),
        (lambda fields: Block([never], fields=fields), "a choice block"),
        (lambda fields: Elastic("fc", never, {"width": [1]}, fields=fields), "elastic layer fc"),
    ],
)
def test_fields_are_a_list_of_names(make: Any, where: str) -> None:
    said = f"{where}: expected fields to be a list of names of batch fields, found "
    assert message(make, "input") == f"{said}the text 'input'; write fields=('input',)"
    assert message(make, 3) == f"{said}3"
    assert message(make, [never]).startswith(said)


@pytest.mark.parametrize(
    ("candidates", "found"), [("ab", "the text 'ab'"), (never, "never"), (3, "int")]
)
def test_candidates_are_a_list(candidates: Any, found: str) -> None:
    assert message(Block, candidates) == (
        "a choice block: expected a list of factories, as in npp.Block([lambda: ..., lambda: "
        f"...]), found {found}"
    )
