"""The ordinary run: every value of every list of cases, but not every product of such lists.

A test that launches and is given three numbers of groups and three averages has nine cases. Three
of them hold each number and each average once. The ordinary run takes those three. It leaves out
tests that are marked ``long``, and entries of lists that :func:`long` marks. ``--all`` takes
everything; so does naming a test by ``FILE::TEST``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

Values = frozenset[Any]
"""What a case is given: an entry of each list."""


def long(*values: Any) -> ParameterSet:
    """An entry of a list of cases that the ordinary run leaves out: others guard its rule."""
    return pytest.param(*values, marks=pytest.mark.long)


def covering(cases: Sequence[Values]) -> list[int]:
    """The numbers of a few cases that together hold every value that there is, in their order.

    Always the case that adds the most values is taken next; of several, the first.
    """
    missing = set().union(*cases)
    taken: list[int] = []
    while missing:
        best = max(range(len(cases)), key=lambda number: (len(cases[number] & missing), -number))
        missing -= cases[best]
        taken.append(best)
    return sorted(taken)


class Thinned:
    """Leaves out cases of tests that launch, unless all are asked for."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Behind the marks that say what launches."""
        if config.getoption("all") or any("::" in argument for argument in config.args):
            return
        products: dict[str, list[pytest.Item]] = {}
        out = {item.nodeid for item in items if item.get_closest_marker("long") is not None}
        for item in items:
            is_launching = item.get_closest_marker("launches") is not None
            if is_launching and item.nodeid not in out and _values(item):
                products.setdefault(item.nodeid.partition("[")[0], []).append(item)
        for cases in products.values():
            kept = {cases[number].nodeid for number in covering([_values(case) for case in cases])}
            out |= {case.nodeid for case in cases} - kept
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
        items[:] = [item for item in items if item.nodeid not in out]


def _values(item: pytest.Item) -> Values:
    """Entries are told apart by the objects in them: the cases of a product share these."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return frozenset()
    left = {name: id(value) for name, value in callspec.params.items()}
    values = set()
    for mark in item.iter_markers("parametrize"):
        given = mark.args[0]
        names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
        values.add(tuple((name, left.pop(name)) for name in names))
    return frozenset(values | {(each,) for each in left.items()})
