"""Compare every batch of prepared data with fairseq's own; writes artifacts/fairseq/result.json.

Data sets are directories as fairseq-preprocess writes them (default: en-de-2k, prepared).
The exit status is 1 when a batch differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.data.cache import default_root  # noqa: E402


def main() -> int:
    """Small texts in both formats, then each directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/fairseq/result.json")
    arguments = parser.parse_args()
    directories = arguments.directories or [default_root() / "en-de-2k"]
    with tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, ROOT / "tests/data/with_fairseq.py", scratch, "64", *directories]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, stdout=subprocess.PIPE, env=environment, check=True)
    found = json.loads(done.stdout)
    versions = {name: version(name) for name in ("ve-fairseq", "torch", "numpy")}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"versions": versions, **found}, indent=1) + "\n")
    rows = [row for name, listed in found.items() if name != "reused" for row in listed]
    wrong = [row for row in rows if row["differ"] or row["batches"][0] != row["batches"][1]]
    print(f"{len(rows)} epochs, {sum(row['batches'][0] for row in rows)} batches: "
          f"{len(wrong)} epochs differ")  # fmt: skip
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
