"""What the bench of elastic teachers expects, and whether what it found is that."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

RATIO = 4.8
"""Steps of the student in the time of one label: one V100 and P4s as teachers (EDL-Dist, 4.3)."""

TOLERANCE = 0.10
MOST_LABEL_COST, LEAST_GAIN, MOST_BYTES, MOST_GROWTH = 1.03, 1.5, 200, 0.02


class Spread(NamedTuple):
    """Some figures."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one figure or more."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.least:.3f} to {self.most:.3f})"


def expected(teachers: int) -> float:
    """Of the student's rate."""
    return min(1.0, teachers / RATIO)


def judged(found: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """By figure: what it is, what was found, what is wanted, and whether it holds."""
    rows: list[tuple[str, str, str, bool]] = []
    for count, shares in found.get("law", {}).items():
        wanted, spread = expected(int(count)), Spread.of(shares)
        holds = abs(spread.median / wanted - 1.0) <= TOLERANCE
        rows.append((f"{count} teachers", str(spread), f"{wanted:.3f}, within 10 %", holds))
    for way, ratios in found.get("label", {}).items():
        spread, limit = Spread.of(ratios), f"<= {MOST_LABEL_COST}" if way == "file" else ""
        holds = way != "file" or spread.median <= MOST_LABEL_COST
        rows.append((f"step with labels ({way}) over one without", str(spread), limit, holds))
    if part := found.get("apart"):
        spread, cost = Spread.of(part["gain"]), Spread.of(part["label_over_step"])
        what = f"student and teacher over inline (a label costs {cost.median:.2f} steps)"
        rows.append((what, str(spread), f">= {LEAST_GAIN}", spread.median >= LEAST_GAIN))
    for who, (early, late) in found.get("memory", {}).get("rss_bytes", {}).items():
        growth, at = late / early - 1.0, found["memory"]["steps"]
        said = f"{early / 2**20:.1f}, {late / 2**20:.1f} MiB"
        what = f"memory of the {who} at steps {at[0]} and {at[1]}"
        rows.append((what, said, f"growth <= {MOST_GROWTH:.0%}", growth <= MOST_GROWTH))
    if part := found.get("bytes"):
        most = max(part["most"], part["greatest"])
        said = f"{part['most']} of {part['requests']}, at most {part['greatest']}"
        rows.append(("bytes of a request", said, f"<= {MOST_BYTES}", most <= MOST_BYTES))
    return rows
