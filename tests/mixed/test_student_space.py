"""Spaces of mixed edges, tables of operations, and what does not fit them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.mixed import operations, student


def layers():
    return [
        [lambda: nn.Conv2d(3, 8, 3, padding=1), lambda: nn.Conv2d(3, 8, 5, padding=2)],
        [lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Identity],
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(8 * 6 * 6, 10)),
    ]


def test_operations_are_products_of_one_sample():
    torch.manual_seed(2)
    expected = torch.rand(1)
    torch.manual_seed(2)
    table = operations(layers(), torch.empty(4, 3, 6, 6))
    assert torch.equal(torch.rand(1), expected)  # nothing is drawn of the caller's generator
    assert table[0] == [36 * 3 * 8 * 9, 36 * 3 * 8 * 25]
    assert table[1][1] == 0 and table[2] == [8 * 36 * 10]


def test_the_blocks_of_a_student():
    space = student("small", layers())
    assert space.candidate_counts == (1, 1, 1)
    assert [space.fields(block) for block in range(3)] == [
        ("input", "round"),
        ("round",),
        ("round",),
    ]
    edges = [block.candidates[0]() for block in space.blocks]
    assert [len(edge.candidates) for edge in edges] == [2, 2, 1]
    assert all(edge.operations is None and edge.reference is None for edge in edges)


def test_the_reference_is_said_by_the_last_layer():
    space = student("small", layers(), operations=[[9, 5], [3, 0], [7]], reference=12)
    edges = [block.candidates[0]() for block in space.blocks]
    assert [edge.operations for edge in edges] == [(9, 5), (3, 0), (7,)]
    assert [edge.reference for edge in edges] == [None, None, 12]


def test_bad_tables_are_one_line():
    for options, text in (
        ({"reference": 12}, "found reference without operations; naspipe.mixed.operations makes"),
        ({"operations": [[9, 5], [3, 0], [7]]}, "found operations without reference"),
        ({"operations": [[9, 5], [3], [7]], "reference": 12}, "with 2, 2, 1 candidates, found rows "
                                                              "of 2, 1, 1"),
        ({"operations": [[9, 5]], "reference": 12}, "found rows of 2"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=text) as caught:
            student("small", layers(), **options)
        assert "\n" not in str(caught.value)


def test_a_cost_term_and_a_table_belong_together(tmp_path):
    def data(seed, number):
        return {"input": torch.ones(4, 16), "target": torch.zeros(4, dtype=torch.long)}

    chain = [[lambda: nn.Linear(16, 10), lambda: nn.Linear(16, 10, bias=False)]]
    plain = student("plain", chain)
    costed = student("costed", chain, operations=[[160.0, 80.0]], reference=100.0)
    loss = nn.CrossEntropyLoss()
    for space, chosen, text in (
        (plain, npp.losses.CostTerm(loss), "student plain: expected a table of operations"),
        (costed, loss, "student costed: expected a loss with a cost term .* CrossEntropyLoss"),
    ):
        rounds = npp.mixed.Rounds(data, data)
        teacher = nn.Linear(16, 10)
        with pytest.raises(ConfigError, match=text) as caught:
            npp.train(space, rounds, chosen, steps=2, run_dir=tmp_path / "run")
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
        with pytest.raises(ConfigError, match=text):
            npp.distill_blockwise(
                [teacher], [space], rounds, steps=2, last_loss=chosen, run_dir=tmp_path / "run"
            )
        assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="expected a tensor called 'round'"):
        npp.train(plain, data, loss, steps=2, run_dir=tmp_path / "run")


def test_the_cost_term_counts_in_architecture_rounds_alone():
    output, taught = torch.randn(3, 2), torch.randn(3, 2)
    cost, square = torch.tensor(1.2), nn.functional.mse_loss(output, taught)
    term = npp.losses.CostTerm(weight=0.5, power=2.0)
    assert term.distill(output, cost, taught, torch.tensor(0)) == square
    assert term.distill(output, cost, taught, torch.tensor(1)) == square * 0.5 * cost**2.0
    assert term.fields == ("round",) and term.record == {"weight": 0.5, "power": 2.0}
    target = torch.tensor([0, 1, 1])
    of_labels = npp.losses.CostTerm(nn.CrossEntropyLoss())
    assert of_labels.fields == ("target", "round")
    entropy = nn.functional.cross_entropy(output, target)
    assert of_labels(output, cost, target, torch.tensor(0)) == entropy
    soft = nn.functional.cross_entropy(output, taught.softmax(1))
    assert of_labels.distill(output, cost, taught, target, torch.tensor(0)) == soft
