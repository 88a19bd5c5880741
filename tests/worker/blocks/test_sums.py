"""Sums over passes: one expression, however the passes are dealt to groups."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from naspipe.worker.blocks.ports import REDUCTIONS, Fold, Tree


def halves(leaves):
    """The tree written out: pairs of texts, absent ones left out."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    both = [each for each in (halves(leaves[:half]), halves(leaves[half:])) if each]
    return f"({both[0]}+{both[1]})" if len(both) == 2 else both[0] if both else ""


def chain(leaves):
    total = ""
    for leaf in filter(None, leaves):
        total = f"({total}+{leaf})" if total else leaf
    return total


class Text:
    """Stands for a tensor and says how it came about."""

    def __init__(self, text):
        self.text = text

    def add_(self, other):
        self.text = f"({self.text}+{other.text})"


@given(
    st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 5), st.data(),
    st.sampled_from([("fold", chain), ("tree", halves)]),
)  # fmt: skip
def test_groups_leave_the_expression_alone(passes, groups, data, reduction):
    """Passes may leave out the layer or only a parameter."""
    name, expected = reduction
    used = data.draw(st.lists(st.sampled_from("-np"), min_size=passes, max_size=passes))
    total = None
    for group in range(groups):
        mine = REDUCTIONS[name](passes)
        if total is not None:
            mine.join(total.parts)
        for number in range(passes):
            if number * groups // passes == group and used[number] != "-":
                mine.add(number, {"p": Text(f"g{number}")} if used[number] == "p" else {})
        total = mine
    leaves = [f"g{number}" if used[number] == "p" else "" for number in range(passes)]
    for _ in range(2):  # asked again, it is the same
        found = total.total().get("p")
        assert (found.text if found else "") == expected(leaves)


def test_a_tree_keeps_few_parts():
    tree = Tree(16)
    for number in range(15):
        tree.add(number, {"p": torch.ones(1)})
        assert len(tree.parts) <= 4
    tree.add(15, {"p": torch.ones(1)})
    assert list(tree.parts) == [(0, 16)]
    assert tree.total()["p"] == 16


@pytest.mark.parametrize("kind", [Fold, Tree])
def test_nothing_is_added_to_zeros(kind):
    """Minus nothing stays minus nothing."""
    total = kind(4)
    total.add(1, {"p": torch.tensor([-0.0])})
    assert torch.signbit(total.total()["p"])
