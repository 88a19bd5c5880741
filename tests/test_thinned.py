"""The ordinary run holds every value of every list."""

from __future__ import annotations

import itertools

import pytest

from tests.thinned import Thinned, covering

CASES = """
import pytest

@pytest.mark.launches
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("c", [1, 2, 3])
def test_product(a, b, c): pass

@pytest.mark.launches
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_one_list(a, b): pass

@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, 2])
def test_launches_nothing(a, b): pass

@pytest.mark.launches
@pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.long), 2, 3])
@pytest.mark.parametrize("b", [1, 2])
def test_entries(a, b): pass

@pytest.mark.long
def test_long(): pass
"""


def product(*sizes):
    names = "abcd"[: len(sizes)]
    places = itertools.product(*map(range, sizes))
    return [frozenset(zip(names, each, strict=True)) for each in places]


@pytest.mark.parametrize(("sizes", "few"), [((3, 3), 3), ((2, 4), 4), ((2, 3, 2), 3), ((5,), 5)])
def test_each_value_is_there_and_no_more_cases_than_the_longest_list_has(sizes, few):
    cases = product(*sizes)
    kept = covering(cases)
    assert len(kept) == few
    assert set().union(*(cases[number] for number in kept)) == set().union(*cases)


def test_a_case_that_is_missing_loses_no_value():
    holes = [case for case in product(2, 2) if case != frozenset({("a", 1), ("b", 1)})]
    assert set().union(*(holes[number] for number in covering(holes))) == set().union(*holes)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"product": 4, "one_list": 4, "launches_nothing": 4, "entries": 2}),
        (
            ["--all"],
            {"product": 12, "one_list": 4, "launches_nothing": 4, "entries": 6, "long": 1},
        ),
        (["test_cases.py::test_product"], {"product": 12}),
    ],
)
def test_what_is_collected(tmp_path, words, expected, capsys, monkeypatch):
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    launches:\n    long:\n")
    monkeypatch.chdir(tmp_path)
    found = Counted()
    pytest.main(
        ["--collect-only", "-qq", "--import-mode=importlib", *words], plugins=[found, Thinned()]
    )
    assert found.names == expected


class Counted:
    """How many cases of each test are left."""

    def pytest_addoption(self, parser):
        parser.addoption("--all", action="store_true")

    def pytest_collection_finish(self, session):
        names = [item.name.partition("[")[0].removeprefix("test_") for item in session.items]
        self.names = {name: names.count(name) for name in names}
