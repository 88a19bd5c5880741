"""EDL-Dist's tables by their shape, simulated."""

from __future__ import annotations

import copy

import pytest

from scripts.paper import edl, published
from scripts.paper.common import Options


@pytest.fixture(scope="module")
def result():
    return edl.run(Options(steps=1200))


def test_the_shape_holds(result):
    assert result.holds, result.headlines
    tables = [row for row in result.rows if row["part"].startswith("table")]
    assert len(tables) == 16 and all(abs(row["off"]) < 0.03 for row in tables)
    said = {line.what: (line.ours, line.paper) for line in result.headlines}
    assert said["section 4.3: teachers needed"] == ("5", "5")


def test_the_published_gains_are_those_of_the_tables():
    gains = [cell.elastic / cell.online - 1 for cell in published.EDL_STUDENTS.values()]
    assert [round(100 * gain) for gain in gains] == pytest.approx([142, 144, 152, 170, 181], abs=1)
    shares = [cell.elastic / cell.online - 1 for cell in published.EDL_TEACHERS.values()]
    assert shares == pytest.approx([-0.225, 0.139, 0.252], abs=0.001)


@pytest.mark.parametrize(
    ("part", "case", "way", "factor", "text"),
    [
        ("table 1", "4 cores", "elastic", 0.9, "table 1, 4 cores: elastic"),
        ("table 2", "12 cores", "elastic", 0.8, "Online is not passed"),
        ("section 4.3", "5 P4", "elastic", 0.9, "section 4.3, 5 P4"),
        ("section 4.4", "40 P4", "elastic", 0.9, "four P4 for each V100"),
        ("section 4.4", "56 P4", "elastic", 1.1, "48 P4 are not the best"),
    ],
)
def test_what_is_not_so_is_said(result, part, case, way, factor, text):
    rows = copy.deepcopy(list(result.rows))
    row = next(r for r in rows if (r["part"], r["case"], r["way"]) == (part, case, way))
    row["ours"] *= factor
    if row["off"] is not None:
        row["off"] = (row["off"] + 1) * factor - 1
    assert any(text in fault for fault in edl.faults(rows))
