"""NNI's spaces through naspipe, and NNI's own modules; compare the bits.

Two things are compared. Training: with a plain loop over NNI's own modules, or one stage with
two. Networks: the chains of random architectures with NNI's own models of them, one by one, with
the same weights. All 11 spaces of NNI's hub are there; those that are refused are listed with the
reason. Writes artifacts/nni/result.json, networks.json and refused.json; the exit status is 1 when
a bit differs anywhere, or when a space goes that is listed as refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch

    import naspipe
    from tests.nni.chain import differing, samples
    from tests.nni.compare import differences, stages_agree
    from tests.nni.filtered import FILTERED
    from tests.nni.spaces import MADE, REFUSED, batches

TRAINED = (
    "autoformer",
    "darts",
    "pnas",
    "nasnet",
    "enas",
    "amoebanet",
    "nds",
    "mobilenetv3",
)
"""Spaces whose architectures have sizes of their own, so that NNI has no supernet to train."""


def main() -> int:
    """Every space and number of stages; then every space's networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--architectures", type=int, default=200)
    parser.add_argument("--only", choices=("training", "networks"))
    parser.add_argument("--spaces", nargs="+", help="all by default")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/nni")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    if arguments.only != "networks":
        rows += written(arguments.output / "result.json", trainings(arguments))
    if arguments.only != "training":
        rows += written(arguments.output / "networks.json", networks(arguments))
    if arguments.only is None:
        rows += written(arguments.output / "refused.json", refusals())
    return int(any(row["verdict"] not in ("IDENTICAL", "refused") for row in rows))


def written(path: Path, rows: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """The rows, shown as they come and kept in a file."""
    kept = []
    for row in rows:
        kept.append(row)
        print(row, flush=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def refusals() -> Iterator[dict[str, object]]:
    """Spaces of the hub that do not go, with the line that says why."""
    for name, make in REFUSED.items():
        try:
            naspipe.from_nni(make())
        except naspipe.ConfigError as error:
            yield {"space": name, "verdict": "refused", "said": str(error)}
        else:
            yield {"space": name, "verdict": "not refused"}


def networks(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Chains of random architectures against NNI's own models of them."""
    torch.set_num_threads(1)
    count, made = arguments.architectures, {**FILTERED, **MADE}
    for name, make in ((name, made[name]) for name in arguments.spaces or made):
        torch.manual_seed(7)
        model_space = make()
        space = naspipe.from_nni(model_space)
        batch = batches(0, 0)
        proof = space.proof
        compared = dict(proof.prove(batch)) if proof else {}
        start = time.monotonic()
        wrong = differing(model_space, space, samples(space, count), batch["input"])
        yield {
            "space": name, "architectures": count, "against": "NNI's own models of them",
            "proof": compared, "seconds": round(time.monotonic() - start, 1),
            "verdict": f"{len(wrong)} differ: {wrong[:3]}" if wrong else "IDENTICAL",
        }  # fmt: skip


def trainings(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Runs against a plain loop, and on two stages against one."""
    names = ("proxyless", "shufflenet", "nasbench201")
    plain = [(name, stages) for name in names for stages in arguments.stages]
    for name, stages in [*plain, *((name, 2) for name in TRAINED)]:
        if arguments.spaces and name not in arguments.spaces:
            continue
        against = "NNI's own modules" if (name, stages) in plain else "one stage"
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            compare = differences if against != "one stage" else stages_agree
            wrong = compare(name, Path(scratch) / "run", steps=arguments.steps, stages=stages)
        yield {
            "space": name, "stages": stages, "steps": arguments.steps, "against": against,
            "seconds": round(time.monotonic() - start, 1),
            "verdict": f"{len(wrong)} differ: {wrong[:3]}" if wrong else "IDENTICAL",
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
