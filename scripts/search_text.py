"""A space of text that has something to find, on English-German: does the supernet's ranking hold?

Its candidates differ by kind and by presence (scripts/rankings/text_space.py). Supernets of each
length and seed judge the same random subnets by token loss; these are trained alone with two
seeds, with naspipe.retrain_subnets. Each longest supernet is searched by evolution, and what it
finds is trained alike. BLEU (beam search, sacrebleu) stands beside the loss. Figures and a picture
go to artifacts/search/text.*. What is in --work already is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe as npp  # noqa: E402
from naspipe.data import registry  # noqa: E402
from naspipe.export.translation import BleuScorer  # noqa: E402
from naspipe.search.scores import interval, kendalls_tau  # noqa: E402
from naspipe.search.search_directory import (  # noqa: E402
    Search,
    find_search,
)
from scripts.rankings.text_space import kinds_of, text_space  # noqa: E402
from scripts.search_common import command, draw, keep  # noqa: E402
from scripts.tiny_workload import prepare_data  # noqa: E402
from search_spaces.nlp.shared_layers import TokenLoss  # noqa: E402

DATA, TOKENS = "en-de-2k", 600
RECIPE = {"optimizer": "Adam", "lr": 0.002, "schedule": "cosine", "warmup_steps": 100}
SUPERNETS, SEEDS = (1, 2, 3), (1, 2)
"""Seeds of supernets, and of networks alone."""


class Bench:
    """Space, data and loss, and what was trained of them.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        prepare_data(DATA)
        self.options = options
        self.data, self.valid, self.test = (
            registry.open_data(DATA, max_tokens=TOKENS, split=split)
            for split in ("train", "valid", "test")
        )
        self.space = text_space(**self.data.info)
        self.loss = TokenLoss(self.data.info["padding"])

    def supernet(self, steps: int, seed: int) -> npp.Run:
        """A run of so many steps."""
        return npp.train(
            self.space, self.data, self.loss, steps=steps, seed=seed, sampler="fair",
            run_dir=self.options.work / f"supernet-{steps}-{seed}", resume="if_exists",
            access_log="off", checkpoint_every=1000, keep_checkpoints=1, **RECIPE,
        )  # fmt: skip

    def searched(self, run: npp.Run, name: str, strategy: str, budget: int, seed: int) -> Search:
        """A search of that name."""
        if (run.path / f"search-{name}").is_dir():
            search = find_search(run.path, name)
            if search.manifest["definition"]["budget"] == budget:
                return search
            sys.exit(f"{search.path} judged another number of subnets; choose another --work")
        return npp.search_subnets(
            run, self.data, self.loss, held_out=self.valid, strategy=strategy, budget=budget,
            seed=seed, validate=0, calibrate=0, name=name,
        )  # fmt: skip

    def alone(self, run: npp.Run, search: Search, best: int) -> list[dict[str, Any]]:
        """The best of a search alone, of each seed its scores on the test split, with BLEU."""
        asked = {"search": search, "steps": self.options.alone, "best": best, "others": 0}
        found: list[dict[str, Any]] = []
        for seed in SEEDS:
            for place, each in enumerate(
                npp.retrain_subnets(
                    run, self.data, self.loss, held_out=self.test, validate=0, seed=seed, **asked
                )
            ):
                if seed == SEEDS[0]:
                    choices = search.candidates[each.subnet].choices
                    bleu = self._bleu(search.path / each.run, choices)
                    found.append({"choices": choices, "loss": [], "bleu": bleu})
                found[place]["loss"].append(each.scores.loss)
        return found

    def _bleu(self, path: Path, choices: Sequence[int]) -> float:
        """Of a subnet alone; kept beside its run."""
        kept = path / f"bleu-{self.options.decoded}.json"
        if not kept.exists():
            scorer = BleuScorer(npp.Run(self.space, path), self.test, self.options.decoded)
            kept.write_text(json.dumps(scorer(choices)), "utf-8")
        return float(json.loads(kept.read_text("utf-8")))


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="1000,3000,10000", help="steps of supernets")
    parser.add_argument("--alone", type=int, default=1500, help="steps of a subnet alone")
    parser.add_argument("--subnets", type=int, default=24, help="random ones, trained alone")
    parser.add_argument("--budget", type=int, default=200, help="of a search")
    parser.add_argument("--decoded", type=int, default=3, help="batches to decode")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "search-text")
    options = parser.parse_args()
    bench, lengths = Bench(options), [int(each) for each in options.lengths.split(",")]
    random: list[dict[str, Any]] = []
    supernets, found = [], []
    for seed in SUPERNETS:
        for steps in lengths:
            run = bench.supernet(steps, seed)
            listed = bench.searched(run, "listed", "random", options.subnets, seed=7)
            random = random or bench.alone(run, listed, options.subnets)
            supernets.append({"steps": steps, "seed": seed, **inherited(listed, random)})
            print(f"{steps} steps, seed {seed}: tau {supernets[-1]['tau']:.2f}", flush=True)
        best = bench.searched(run, "evolution", "evolution", options.budget, seed=seed)
        found.append({"seed": seed, **bench.alone(run, best, 1)[0]})
    result = {
        "command": command("scripts/search_text.py"),
        "settings": {key: str(value) for key, value in vars(options).items() if key != "work"},
        "recipe": RECIPE,
        "random": [{**each, "kinds": kinds_of(each["choices"])} for each in random],
        "supernets": supernets,
        "found": [{**each, "kinds": kinds_of(each["choices"])} for each in found],
        **headline(random, found),
    }
    print(keep("text", result), draw("text", lambda axes: paint(axes, result), 3))
    print(json.dumps({key: result[key] for key in headline(random, found)}, indent=1))


def means(alone: Sequence[dict[str, Any]]) -> list[float]:
    """Losses alone, over the seeds."""
    return [statistics.mean(each["loss"]) for each in alone]


def inherited(listed: Search, random: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How a supernet's losses order the random subnets."""
    by_choices = {each.choices: each.scores.loss for each in listed.candidates}
    losses = [by_choices[tuple(each["choices"])] for each in random]
    return {"loss": losses, **agreements(losses, means(random), random)}


def agreements(
    one: Sequence[float], other: Sequence[float], random: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Tau over all random subnets, and over those that read the source: others cannot translate."""
    reading = [n for n, each in enumerate(random) if "source" in kinds_of(each["choices"])]
    few_one, few_other = ([values[n] for n in reading] for values in (one, other))
    return {
        "tau": kendalls_tau(one, other),
        "tau_90": interval(one, other, 0.9),
        "reading": len(reading),
        "tau_of_reading": kendalls_tau(few_one, few_other),
        "tau_of_reading_90": interval(few_one, few_other, 0.9),
    }


def headline(random: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The noise ceiling, and how far what was found is from random subnets."""
    first, second = zip(*(each["loss"] for each in random), strict=True)
    reached = means(random)
    mean, spread = statistics.mean(reached), statistics.stdev(reached)
    return {
        "noise_ceiling": agreements(first, second, random),
        "tau_of_bleu": kendalls_tau([-each["bleu"] for each in random], reached),
        "random_loss_mean": mean,
        "random_loss_spread": spread,
        "random_loss_best": min(reached),
        "random_bleu_mean": statistics.mean(each["bleu"] for each in random),
        "found_loss": means(found),
        "found_bleu": [each["bleu"] for each in found],
        "spreads_above_mean": [(mean - each) / spread for each in means(found)],
    }


def paint(axes: Any, result: dict[str, Any]) -> None:
    """Tau over steps; inherited against alone; BLEU against loss."""
    for seed in SUPERNETS:
        own = [each for each in result["supernets"] if each["seed"] == seed]
        taus = [each["tau"] for each in own]
        ends = [[abs(each["tau_90"][end] - each["tau"]) for each in own] for end in (0, 1)]
        axes[0].errorbar(
            [each["steps"] for each in own], taus, yerr=ends, marker="o", label=f"seed {seed}"
        )
    axes[0].axhline(
        result["noise_ceiling"]["tau"], color="black", ls="--", lw=1, label="noise ceiling"
    )
    axes[0].set(xscale="log", xlabel="steps of the supernet", ylabel="Kendall's tau by loss")
    axes[0].legend(fontsize=7)
    reached, last = (
        means(result["random"]),
        result["supernets"][len(result["supernets"]) // len(SUPERNETS) - 1],
    )
    axes[1].plot(last["loss"], reached, "o", ms=4)
    axes[1].axhline(means(result["found"])[0], color="red", lw=1, label="found, seed 1")
    axes[1].set(xlabel=f"loss inherited, {last['steps']} steps", ylabel="loss alone (test)")
    axes[1].legend(fontsize=7)
    axes[2].plot(reached, [each["bleu"] for each in result["random"]], "o", ms=4, label="random")
    found = [each["bleu"] for each in result["found"]]
    axes[2].plot(means(result["found"]), found, "r*", ms=10, label="found")
    axes[2].set(xlabel="loss alone (test)", ylabel="BLEU")
    axes[2].legend(fontsize=7)


if __name__ == "__main__":
    main()
