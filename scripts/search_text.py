"""nlp.c3 tiny on English-German, end to end: train, search by loss, decode, export, retrain.

Honestly small: minutes of one core. The found subnet and random ones are trained alone for the
same steps; token loss and BLEU (beam search, sacrebleu) on the test split. Figures and a picture
go to artifacts/search/text.*. What is in --work already is not done again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.export.bleu import BleuScorer  # noqa: E402
from naspipe.export.exporter import export_subnet  # noqa: E402
from naspipe.frontend.given.run import Run  # noqa: E402
from naspipe.search.rank_agreement import kendalls_tau  # noqa: E402
from scripts.search_common import Bench, command, draw, keep, random_subnets  # noqa: E402


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="of the supernet")
    parser.add_argument("--alone", type=int, default=400, help="steps of a subnet alone")
    parser.add_argument("--subnets", type=int, default=5, help="random ones, trained alone")
    parser.add_argument("--budget", type=int, default=80, help="of the search")
    parser.add_argument("--validate", type=int, default=6, help="batches to judge inherited by")
    parser.add_argument("--test", type=int, default=8, help="batches to judge retrained by")
    parser.add_argument("--decoded", type=int, default=3, help="batches of them to decode")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "search-text")
    options = parser.parse_args()
    bench = Bench("nlp.c3", {"max_tokens": 600}, options.work, {})
    listed = random_subnets(bench.space, options.subnets, seed=7)
    run = bench.train("csp-uniform", options.steps, "uniform")
    judged = {"calibration": 0, "validation": options.validate}
    search = bench.judge(
        run, "evolution", "valid", strategy="evolution", budget=options.budget, **judged
    )
    best = search.ranked()[0]
    exported = options.work / "exported"
    if not exported.exists():
        export_subnet(run, best.choices, exported, data=bench.named.data)
    inherited = bench.judge_listed(run, "listed", "valid", listed, **judged).candidates
    found = reached(bench, options, "alone-found", best.choices)
    alone = [reached(bench, options, f"alone-{n}", each) for n, each in enumerate(listed)]
    losses, bleus = ([each[key] for each in alone] for key in ("loss", "bleu"))
    supernet = BleuScorer(run, bench.held_out("test"), options.decoded)
    result = {
        "command": command("scripts/search_text.py"),
        "settings": {key: str(value) for key, value in vars(options).items() if key != "work"},
        "inherited": {"loss": best.scores.loss, "bleu": supernet(best.choices)},
        "found": {"choices": list(best.choices), **found},
        "random": alone,
        "random_loss_mean": statistics.mean(losses),
        "random_bleu_mean": statistics.mean(bleus),
        "tau": kendalls_tau([each.scores.loss for each in inherited], losses),
        "searched": [each.scores.loss for each in search.candidates],
    }
    print(keep("text", result), draw("text", lambda axes: paint(axes, result), 2))
    print(
        f"found: loss {found['loss']:.4f}, BLEU {found['bleu']:.2f} trained alone for "
        f"{options.alone} steps; {len(alone)} random ones: mean {statistics.mean(losses):.4f} and "
        f"{statistics.mean(bleus):.2f}; with the supernet's weights the found one has BLEU "
        f"{result['inherited']['bleu']:.2f}"
    )


def reached(
    bench: Bench, options: argparse.Namespace, name: str, choices: Sequence[int]
) -> dict[str, Any]:
    """What a subnet reaches alone, on the test split."""
    run: Run = bench.train_alone(name, choices, options.alone)
    (scored,) = bench.judge_listed(
        run, "test", "test", [choices], calibration=0, validation=options.test
    ).candidates
    bleu = BleuScorer(run, bench.held_out("test"), options.decoded)(choices)
    return {"loss": scored.scores.loss, "top1": scored.scores.top1, "bleu": bleu}


def paint(axes: Any, result: dict[str, Any]) -> None:
    """The search's course, and what is reached alone."""
    axes[0].plot(result["searched"], ".", color="#4477aa")
    axes[0].set(xlabel="subnet of the search", ylabel="token loss with inherited weights")
    losses = [each["loss"] for each in result["random"]]
    axes[1].plot(losses, [each["bleu"] for each in result["random"]], "o", label="random")
    axes[1].plot(result["found"]["loss"], result["found"]["bleu"], "r*", ms=12, label="found")
    axes[1].set(xlabel="token loss trained alone (test)", ylabel="BLEU")
    axes[1].legend()


if __name__ == "__main__":
    main()
