"""One part of the check: ``python -m scripts.gpu.part PART --output FILE --seconds S ...``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from scripts.gpu import compared, measured, tested
from scripts.gpu.findings import Findings
from scripts.gpu.parts import PARTS
from scripts.gpu.runs import shortened

OTHERS: dict[str, Callable[[argparse.Namespace, Findings], None]] = {
    "tests": tested.run_tests,
    "bits": compared.compare_real,
    "verify": compared.verify_real,
    "split": compared.split_real,
    "copies": measured.measure_copies,
    "plain": measured.compare_plain,
    "paper": measured.train_paper,
    "swap": measured.compare_swapping,
}
"""All others compare a group of cases."""


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--toy", action="store_true")
    arguments = parser.parse_args()
    findings = Findings(arguments.output)
    with shortened():
        OTHERS.get(arguments.part, compared.compare_group)(arguments, findings)


if __name__ == "__main__":
    main()
