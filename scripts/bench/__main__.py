"""Run one benchmark: ``python scripts/bench NAME [OPTIONS]``; NAME is a module of this folder."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

NAMES = sorted(
    path.stem for path in HERE.glob("*.py") if path.stem not in ("__init__", "__main__", "common")
)


def main() -> int:
    """Run the benchmark that the first argument names."""
    name, words = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name not in NAMES:
        what = "" if name in ("", "-h", "--help") else f"expected a benchmark, found {name}\n"
        print(f"{what}usage: python scripts/bench NAME [OPTIONS], where NAME is one of:")
        for each in NAMES:
            summary = (import_module(f"scripts.bench.{each}").__doc__ or "").split("\n")[0]
            print(f"  {each:12} {summary}")
        return 2 if what else 0
    return int(import_module(f"scripts.bench.{name}").main(words) or 0)


if __name__ == "__main__":
    sys.exit(main())
