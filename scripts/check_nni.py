"""Train NNI's spaces through naspipe and in a plain loop over NNI's own modules; compare the bits.

Writes artifacts/nni/result.json; the exit status is 1 when a bit differs anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.nni.compare import differences, stages_agree


def main() -> int:
    """Every space and number of stages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/nni/result.json")
    arguments = parser.parse_args()
    rows = []
    names = ("proxyless", "shufflenet", "nasbench201")
    plain = [(name, stages) for name in names for stages in arguments.stages]
    for name, stages in [*plain, *((name, 2) for name in ("autoformer", "darts", "nds"))]:
        against = "NNI's own modules" if (name, stages) in plain else "one stage"
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            compare = differences if against != "one stage" else stages_agree
            wrong = compare(name, Path(scratch) / "run", steps=arguments.steps, stages=stages)
        rows.append(
            {
                "space": name, "stages": stages, "steps": arguments.steps, "against": against,
                "seconds": round(time.monotonic() - start, 1),
                "verdict": f"{len(wrong)} differ: {wrong[:3]}" if wrong else "IDENTICAL",
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["verdict"] != "IDENTICAL" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
