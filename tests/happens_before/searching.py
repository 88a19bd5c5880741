"""Looks for a case with a race; the same code draws the same cases."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, settings

from tests.happens_before.clocks import RaceError, WrongBytesError
from tests.happens_before.orders import drawn_orders, run_order

MUTANT_CASES = 500
"""Within so many a mutant has to be found."""


class _EnoughError(Exception):
    """Ends a search."""


class Verdict(NamedTuple):
    """What a search found."""

    cases: int
    """Which were run; the last one is red, if one is."""
    finding: str
    """Empty where there is none."""
    done: Counter[str]
    """How often what was done in all of them."""


def search(most_cases: int, watches: bool = True) -> Verdict:
    """Run cases up to the first that is red.

    Args:
        most_cases: after so many there is none.
        watches: whether clocks look for races; otherwise only wrong bytes count.
    """
    done, findings, cases = Counter[str](), list[str](), 0

    @settings(
        max_examples=most_cases,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn_orders)
    def run(order: bytes) -> None:
        nonlocal cases
        cases += not findings
        try:
            done.update({} if findings else run_order(order, watches))
        except (RaceError, WrongBytesError) as error:
            findings.append(f"{type(error).__name__}: {error}")
        if findings:
            raise _EnoughError

    with suppress(_EnoughError):
        run()
    return Verdict(cases, "".join(findings), done)
