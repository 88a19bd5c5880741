"""What naspipe's placements leave to free ones: simulated bubbles of both, and the bound.

    scripts/bench_free_stages.py --only fair:nlp.c1 fair:cv.c3

Costs are Table 5's, with recompute; messages take no time. "naspipe" is its own simulation, order
and partition by its own choice; "balanced" is without parts that go round. "free" lets a
block run on any stage that is free (scripts/free_stages.py): at best, with layers that move in no
time; at 12 GB/s, for which the stage waits; and so, too, but "at hand" takes of 64 accesses the
first whose layer is there. Results are kept as they come in artifacts/free_stages/, also a plot.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import search_spaces  # noqa: E402
from naspipe.api.simulate import Scenario, table5_scenario  # noqa: E402
from naspipe.config.definition import Execution  # noqa: E402
from naspipe.config.ids import LayerId  # noqa: E402
from naspipe.plan.bounds import causal_bound, side_by_side  # noqa: E402
from naspipe.plan.pipeline import Pipeline  # noqa: E402
from naspipe.store.files import write_json  # noqa: E402
from scripts.free_stages import FreeStages, accesses_of, set_levels  # noqa: E402

STAGES, WINDOW = 8, 64
BYTES_PER_NS = 12.0
"""A link between stages, or of a GPU and its host."""
CASES = (
    *(("fair", name, 1, False) for name in ("nlp.c1", "nlp.c3", "cv.c3")),
    *(("uniform", name, 1, True) for name in search_spaces.names()),
    ("uniform", "nlp.c1", 4, False),
)
"""Sampler, space, streams side by side, and whether there are its shared layers, trained."""
KINDS = ("bound", "free", "12 GB/s", "12 GB/s, at hand", "naspipe", "balanced")


def measure(scenario: Scenario, pipeline: Pipeline) -> dict[str, float]:
    """One seed."""
    execution = Execution(stages=STAGES, window=WINDOW, recompute=True)
    bounds = [
        causal_bound(each.subnets, each.chain.rules, scenario.costs) for each in pipeline.streams
    ]
    found = {"bound": side_by_side(bounds).steady_bubble(STAGES)}
    costs = scenario.timing(scenario.costs, execution, None)

    def copy_ns(layer: LayerId) -> int:
        return int(scenario.parameters(layer.block, layer.candidate) / BYTES_PER_NS)

    for kind, copy, looks_at in (
        ("free", no_time, 1), ("12 GB/s", copy_ns, 1), ("12 GB/s, at hand", copy_ns, WINDOW),
    ):  # fmt: skip
        streams = [accesses_of(each, costs) for each in pipeline.streams]
        for each in streams:
            set_levels(each)
        outcome = FreeStages(streams, STAGES, WINDOW, copy, looks_at).run()
        found |= {kind: outcome.bubble, f"{kind}: moved": outcome.moved}
    for kind, partition in (("naspipe", "auto"), ("balanced", "balanced")):
        own = execution.changed(partition=partition)
        found[kind] = scenario.run(pipeline, own).summary.bubble_ratio
    return found


def no_time(layer: LayerId) -> int:
    """A layer is everywhere at once."""
    return 0


def draw(results: dict[str, Any], path: Path) -> None:
    """A group of bars for each case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 4))
    width = 0.8 / len(KINDS)
    for number, kind in enumerate(KINDS):
        places = [case + (number - 2.5) * width for case in range(len(results))]
        axes.bar(places, [each["means"][kind] for each in results.values()], width, label=kind)
    axes.set_xticks(range(len(results)), [name.replace(" ", "\n") for name in results])
    axes.set_ylabel(f"bubble on {STAGES} stages")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure what is not kept yet; print, write and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", metavar="SAMPLER:SPACE")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/free_stages")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    kept = options.output / f"{options.steps}-subnets.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    for sampler, space, count, with_shared in CASES:
        name = f"{sampler} {space}" + f" x{count}" * (count > 1) + " shared" * with_shared
        is_wanted = not options.only or f"{sampler}:{space}" in options.only
        if not is_wanted or len(results.get(name, {}).get("seeds", ())) >= options.seeds:
            continue
        scenario = table5_scenario(space, with_shared=with_shared)
        begin = time.monotonic()
        found = [
            measure(scenario, scenario.pipeline(sampler, seed, options.steps, streams=count))
            for seed in range(options.seeds)
        ]
        means = {kind: round(fmean(each[kind] for each in found), 4) for kind in found[0]}
        results[name] = {"means": means, "seeds": found}
        write_json(kept, results)
        print(f"{name}: {means} ({time.monotonic() - begin:.0f} s)", flush=True)
    draw(results, options.output / f"{options.steps}-subnets.png")


if __name__ == "__main__":
    main()
