"""What factories read is kept as their blocks are made."""

from __future__ import annotations

import functools

from naspipe.config.blocks import Block, Shared, changed_reads

WIDTH = 8
COUNT = 0


def test_a_loop_over_blocks() -> None:
    blocks = []
    for rate in (0.0, 0.1, 0.2):
        blocks.append(Block([lambda: ("a", rate), lambda: [rate for _ in range(2)]]))  # noqa: B023
    found = [[changed_reads(factory) for factory in block.candidates] for block in blocks]
    assert found[:2] == [[[("rate", 0.0, 0.2)]] * 2, [[("rate", 0.1, 0.2)]] * 2]
    assert found[2] == [[], []]


def test_what_is_bound_early_or_not_plain_does_not_count() -> None:
    kept = {"k": 1}
    for k in range(2):
        early = Block([lambda k=k: k, functools.partial(lambda k: k, k)])
        other = Block([lambda: kept])
    kept["k"] = 2
    assert [changed_reads(each) for each in (*early.candidates, *other.candidates)] == [[]] * 3


def test_globals(monkeypatch) -> None:
    def counts() -> int:
        global COUNT
        COUNT += 1
        return COUNT

    shared = Shared("stem", functools.partial(lambda x: lambda: x + WIDTH, 1))
    block = Block([counts])
    counts()
    assert changed_reads(shared.factory) == []
    monkeypatch.setitem(globals(), "WIDTH", 16)
    assert changed_reads(shared.factory) == [("WIDTH", 8, 16)]
    assert changed_reads(block.candidates[0]) == [], "it changes that itself"
