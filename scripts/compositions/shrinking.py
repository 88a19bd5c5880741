"""The smallest case that still fails in the same way, and a script that shows it."""

from __future__ import annotations

from collections.abc import Callable

from scripts.compositions.cases import Case, settled, simpler, text_of
from scripts.compositions.runs import Outcome

MOST_TRIES = 400


def shrink(
    case: Case, outcome: Outcome, check: Callable[[Case], Outcome], most: int = MOST_TRIES
) -> tuple[Case, Outcome]:
    """Make values of a case simpler, one or several at a time, while it fails in the same way.

    Args:
        case: one that fails.
        outcome: how it fails.
        check: runs a case.
        most: how many cases are run at most.

    Returns:
        A case none of whose values can be made simpler, unless ``most`` was reached; and how it
        fails.
    """
    tried, left, is_smaller = {text_of(case)}, most, True
    while is_smaller and left > 0:
        is_smaller = False
        for other in map(settled, simpler(case)):
            if text_of(other) in tried or left <= 0:
                continue
            tried.add(text_of(other))
            left -= 1
            found = check(other)
            if found.signature == outcome.signature:
                case, outcome, is_smaller = other, found, True
                break
    return case, outcome


def script_of(case: Case, outcome: Outcome) -> str:
    """A script that runs one case and prints what became of it."""
    return (
        f'"""{outcome.kind}: {" ".join(outcome.detail.splitlines()[:1])[:200]}"""\n'
        "from scripts.compositions.runs import check\n\n"
        f"CASE = {case!r}\n\n"
        'if __name__ == "__main__":\n'
        "    outcome = check(CASE)\n"
        "    print(outcome.kind, outcome.detail)\n"
        "    raise SystemExit(not outcome.is_good)\n"
    )
