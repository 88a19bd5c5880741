"""Paths of student blocks rated: the bits of a plain loop, on any stages, in any order."""

from __future__ import annotations

import copy
import hashlib
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_torch
from tests.equivalence.test_blockwise import SEED, distill, plain_loops, students, teachers
from tests.oracle import PlainLoop
from tests.search.plain import held_out

HELD = held_out(spaces.vectors)
COUNTS = {"calibrate": 3, "validate": 2}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return distill(tmp_path_factory.mktemp("blockwise") / "run", 1)


def lines_of(ratings):
    return [each.path.joinpath("candidates.jsonl").read_bytes() for each in ratings]


def scores_of(rating):
    return {each.choices: each.scores.loss for each in rating.candidates}


def plain_score(modules, blocks, number):
    """A path by a loop of its own: fresh statistics of three batches, then two are judged."""
    modules = [copy.deepcopy(each).eval() for each in modules]
    norms = [each for m in modules for each in m.modules() if isinstance(each, nn.BatchNorm1d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()

    def outputs(batch):
        x = batch["input"]
        for block in blocks[:number]:
            x = block(x)
        taught, output = blocks[number](x), x
        for module in modules:
            output = module(output)
        return output, taught

    total = torch.zeros((), dtype=torch.float64)
    with plain_torch(), torch.no_grad():
        for place in range(3):
            outputs(spaces.vectors(SEED, place))
        for norm in norms:
            norm.eval()
        for place in range(2):
            output, taught = outputs(HELD(SEED, place))
            if number == len(blocks) - 1:
                loss = functional.cross_entropy(output, taught.softmax(1))
            else:
                loss = (output - taught).abs().mean() / taught.std()
            total += loss.double() * taught.numel()
    return total.item() / (2 * taught.numel())


def test_ratings_are_those_of_a_plain_loop_on_any_number_of_stages(found):
    before = digests(found)
    one = npp.rate_blocks(found, HELD, **COUNTS, name="one")
    two = npp.rate_blocks(found, HELD, **COUNTS, name="two", stages=2)
    assert lines_of(one) == lines_of(two)
    assert digests(found) == before
    blocks = [each.eval() for each in teachers()]
    loops = plain_loops(found.blocks)
    for number, (run, rating) in enumerate(zip(found.blocks, one, strict=True)):
        scores = {}
        for choices in itertools.product(*map(range, run.space.candidate_counts)):
            modules = [loops[number].layer(*pair) for pair in enumerate(run.space.chain(choices))]
            scores[choices] = plain_score(modules, blocks, number)
        assert scores_of(rating) == scores
        expected = sorted(scores, key=lambda each: (scores[each], each))
        assert [each.choices for each in rating.ranked()] == expected
    assert [len(each.candidates) for each in one] == [9, 3, 1]


def digests(found):
    """Of all files but the ratings."""
    files = sorted(found.blocks[0].directory.path.parent.rglob("*"))
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file() and "search-" not in str(path)
    }


def test_paths_in_another_order_and_twice_have_the_same_ratings(tmp_path):
    activations = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.LeakyReLU)
    first = npp.Block([lambda a=a: nn.Sequential(a(), nn.Linear(16, 24)) for a in activations])
    given = [npp.Space("first", [first]), *students()[1:]]
    found = npp.distill_blockwise(
        teachers(), given, spaces.vectors, steps=12, seed=SEED, run_dir=tmp_path / "run"
    )
    whole = npp.rate_blocks(found, HELD, **COUNTS)
    for stages in (1, 2):
        some = npp.rate_blocks(found, HELD, **COUNTS, at_most=3, seed=7, stages=stages)
        assert [each.choices for each in some[0].candidates] == [(3,), (0,), (1,)]
        for all_of, drawn in zip(whole, some, strict=True):
            scores = scores_of(all_of)
            assert {c: scores[c] for c in scores_of(drawn)} == scores_of(drawn)


def test_measures(found):
    own = npp.rate_blocks(found, HELD, **COUNTS, measure="loss", last_measure="l2")
    square = npp.rate_blocks(
        found, HELD, **COUNTS, measure=lambda output, taught: (output - taught).square().mean()
    )
    assert [scores_of(each) for each in own[:2]] == [scores_of(each) for each in square[:2]]
    said = [[each.manifest["definition"]["loss"] for each in rated] for rated in (own, square)]
    assert [each.rpartition(".")[2] for each in said[0]] == ["BlockLoss"] * 2 + ["l2_distance"]
    assert said[1][2] == "torch.nn.modules.loss.CrossEntropyLoss"


def test_it_is_read_back(found, tmp_path):
    path = found.blocks[0].directory.path.parent
    again = npp.Blockwise.of(path, teachers(), students(), spaces.vectors)
    one = npp.rate_blocks(found, HELD, **COUNTS, name="before")
    other = npp.rate_blocks(again, HELD, **COUNTS, name="after")
    assert lines_of(one) == lines_of(other)
    assert lines_of(again.ratings()) == lines_of(again.ratings("before")) == lines_of(one)
    assert [each.name for each in (*again.ratings(), *again.ratings("before"))] == [
        *["after"] * 3, *["before"] * 3
    ]  # fmt: skip
    changed = teachers()
    with torch.no_grad():
        changed[1][0].weight[0, 0] += 1
    for text, given in (
        ("expected the teacher that it was trained with", (changed, students(), spaces.vectors)),
        ("expected the data that it was trained with", (teachers(), students(), spaces.images)),
        ("expected 3 blocks of a teacher, found 2", (teachers()[:2], students(), spaces.vectors)),
        ("the runs of 2 student blocks, found 3", (teachers(), students()[:2], spaces.vectors)),
        ("expected the blocks 0, 1", (teachers(), [*students()[1::-1], students()[2]], HELD)),
    ):
        with pytest.raises(npp.ConfigError, match=text) as caught:
            npp.Blockwise.of(path, *given)
        assert "\n" not in str(caught.value)
    with pytest.raises(npp.ConfigError, match="expected the loss that it was trained with"):
        npp.Blockwise.of(path, teachers(), students(), spaces.vectors, loss=nn.CrossEntropyLoss())
    with pytest.raises(npp.ConfigError, match="of 3 student blocks, found 0"):
        npp.Blockwise.of(tmp_path, teachers(), students(), spaces.vectors)


def test_the_best_combination_within_limits(found):
    ratings = npp.rate_blocks(found, HELD, **COUNTS)
    free = npp.combine_blocks(ratings)
    assert free.choices == tuple(each.ranked()[0].choices for each in ratings)
    network = found.network(free.choices)
    assert free.costs["params"] == sum(p.numel() for p in network.parameters())
    tight = npp.combine_blocks(ratings, {"params": free.costs["params"] - 1})
    assert tight.costs["params"] < free.costs["params"] and tight.score > free.score
    with pytest.raises(npp.ConfigError, match="found the cheapest at"):
        npp.combine_blocks(ratings, {"flops": 1})
    with pytest.raises(npp.ConfigError, match="expected flops, params, latency_ms, found 'size'"):
        npp.combine_blocks(ratings, {"size": 1})


class NeedsLabels:
    """Learns labels, too."""

    def distill(self, output, taught, target):
        return functional.cross_entropy(output, taught.softmax(1))


def test_bad_input_is_one_line_and_nothing_is_written(found):
    npp.rate_blocks(found, HELD, **COUNTS, name="here")
    path = found.blocks[0].directory.path.parent
    before = sorted(path.rglob("*"))
    other = npp.Blockwise(
        found.blocks, found.teachers, found.data, (*found.losses[:2], NeedsLabels())
    )
    for of, held, given, text in (
        (found, None, {}, "attribute validation"),
        (found, HELD, {"measure": "l3"}, "expected l1, l2, loss or a function, found 'l3'"),
        (found, HELD, {"name": "here"}, "there is a rating 'here' already"),
        (found, HELD, {"at_most": 0}, "budget: expected 1 or more, found 0"),
        (found, HELD, {"strategy": "best", "at_most": 1}, "unknown strategy 'best'"),
        (other, HELD, {}, "found NeedsLabels, which needs target; choose l1 or l2"),
    ):
        with pytest.raises(npp.ConfigError, match=text) as caught:
            npp.rate_blocks(of, held, **given)
        assert "\n" not in str(caught.value) and sorted(path.rglob("*")) == before


@pytest.mark.parametrize("is_anew", [False, True])
def test_the_composed_network_is_trained_as_any_space_is(found, tmp_path, is_anew):
    choices = [(0, 1), (2,), ()]
    network = found.network(choices)
    space = found.space(choices, anew=is_anew)
    given = [space] if is_anew else [space, npp.chain(network)]
    for stages, own in enumerate(given, 1):
        run = npp.train(
            own, spaces.vectors, nn.CrossEntropyLoss(), steps=8, seed=3, lr=0.05, stages=stages,
            run_dir=tmp_path / f"run-{stages}",
        )  # fmt: skip
        layers = [lambda part=part: copy.deepcopy(part) for part in network]
        if is_anew:
            layers = [block.candidates[0] for block in space.blocks]
        fields = [["input"], *[[]] * (len(layers) - 1)]
        loop = PlainLoop([[each] for each in layers], fields, {}, 3, "SGD", 0.05, {})
        with plain_torch():
            for y in range(8):
                loss = functional.cross_entropy
                loop.step(y, [0] * len(layers), spaces.vectors(3, y), loss)
        assert_same_bits(run, loop)
        weights = run.manifest["definition"].get("weights", "")
        assert weights == ("" if is_anew else npp.chain(network).weights)


def test_choices_are_asked_for(found):
    for choices, text in (
        (None, "those of 3 blocks, one list for each, found none"),
        ([(0, 1), (2,)], "found 2"),
        ([(0,), (2,), ()], "space first: expected 2 choices"),
        ([(0, 3), (2,), ()], "a choice from 0 to 2, found 3"),
    ):
        with pytest.raises(npp.ConfigError, match=text):
            found.network(choices)


def test_a_search_of_all_subnets(tmp_path):
    run = npp.train(
        spaces.mixed(blocks=2), spaces.vectors, nn.CrossEntropyLoss(), steps=4, seed=1,
        sampler="uniform", run_dir=tmp_path / "run",
    )  # fmt: skip

    def search(**given):
        given = {"calibrate": 1, "validate": 1, **given}
        loss = nn.CrossEntropyLoss()
        return npp.search_subnets(
            run, spaces.vectors, loss, held_out=HELD, strategy="all", **given
        )  # fmt: skip

    counts = run.space.candidate_counts
    every = [*itertools.product(*map(range, counts))]
    found = search(budget=len(every))
    assert [each.choices for each in found.candidates] == every
    most = sorted(each.cost.params for each in found.candidates)[1]
    few = [each.choices for each in found.candidates if each.cost.params <= most]
    bound = search(budget=len(few), limits={"params": most})
    assert [each.choices for each in bound.candidates] == few
    with pytest.raises(npp.ConfigError, match=f"expected the budget {len(every)}, found 100"):
        search()
    with pytest.raises(npp.ConfigError, match="strategy all: expected no options"):
        search(budget=len(every), options={"population": 3})
