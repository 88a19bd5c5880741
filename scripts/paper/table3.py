"""Table 3: what the number of stages does to a supernet and to a search on it; real training.

A run that is in the result file already, with the same rule for what is read late, is not repeated.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

from scripts.paper import published
from scripts.paper.common import ROOT, Headline, Options, Result, real_run
from scripts.paper.figure4 import default_rule

STEPS = 60
SEARCHED, BATCHES = 8, 4
KNOWN = ROOT / "artifacts/table3/result.json"
NAMES = {"csp": "CSP (naspipe)", "bsp": "BSP (GPipe)", "asp": "ASP (PipeDream)"}


def run(options: Options) -> Result:
    """Each policy on each number of stages; asp twice on the most."""
    spaces = options.spaces or ("nlp.c3", "cv.c3")
    steps, counts = options.steps or STEPS, options.stages or (1, 2, 4)
    runs = [(policy, stages, 1) for policy in NAMES for stages in counts]
    runs.append(("asp", max(counts), 2))
    known = kept(KNOWN, options.scale, steps)
    rows = []
    for space, (policy, stages, attempt) in product(spaces, runs):
        rule = default_rule(space) if policy == "csp" else ""
        case = (space, policy, stages, attempt, rule)
        rows.append(known.get(case) or trained(case, options.scale, steps))
    groups = {
        (space, policy): [row for row in rows if (row["space"], row["policy"]) == (space, policy)]
        for space in spaces
        for policy in NAMES
    }
    return Result(
        experiment="table3",
        title=f"Table 3: {options.scale} spaces, {steps} steps",
        kind="real",
        rows=rows,
        headlines=[
            Headline(
                f"{space}, {NAMES[policy]}, {' / '.join(map(str, counts))} stages",
                verdict_of(mine, len(counts)),
                published.TABLE3[policy] if space == spaces[0] else "-",
            )
            for (space, policy), mine in groups.items()
        ],
        differs=(
            "tiny spaces on CPU processes and 1, 2 and 4 stages instead of 4, 8 and 16 GPUs; the "
            f"score is the validation loss (lower is better) of the best of {SEARCHED} sampled "
            "subnets with inherited weights, not BLEU after a whole search; CSP trains the shared "
            "front layers late, which costs at the beginning, while BSP and ASP know no "
            "lag: on one stage both are the plain loop without it"
        ),
        settings={"spaces": spaces, "scale": options.scale, "steps": steps, "batches": BATCHES},
        holds=all(
            (len({row["all_bits"] for row in mine}) == 1) == (policy == "csp")
            for (_, policy), mine in groups.items()
        ),
    )


Case = tuple[str, str, int, int, str]
"""Space, policy, stages, attempt and the rule of what is read late, where that matters."""


def kept(path: Path, scale: str, steps: int) -> dict[Case, dict[str, Any]]:
    """Rows of an earlier result, by what was run."""
    result = json.loads(path.read_text()) if path.exists() else {"settings": {}}
    settings = result["settings"]
    if (settings.get("scale"), settings.get("steps")) != (scale, steps):
        return {}
    names = ("space", "policy", "stages", "attempt", "rule")
    return {tuple(row[name] for name in names): row for row in result["rows"]}


def trained(case: Case, scale: str, steps: int) -> dict[str, Any]:
    """One run, and a search on what it leaves."""
    space, policy, stages, attempt, rule = case
    found = real_run(
        space=space, scale=scale, policy=policy, stages=stages, steps=steps,
        search=SEARCHED, batches=BATCHES,
    )  # fmt: skip
    return {
        "space": space,
        "policy": policy,
        "rule": rule,
        "stages": stages,
        "attempt": attempt,
        "last_loss": found["losses"][-1],
        "mean_of_last_10": sum(found["losses"][-10:]) / len(found["losses"][-10:]),
        "search_score": found["search"]["best_score"],
        "best_subnet": found["search"]["best_subnet"],
        "all_bits": digest([*found["loss_bits"], found["search"]["score_bits"]]),
    }


def digest(parts: list[str]) -> str:
    """Twelve hex digits that differ when any loss or the score differs in one bit."""
    import hashlib

    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]


def verdict_of(mine: list[dict[str, Any]], counts: int) -> str:
    """In words, from the rows of one policy in one space."""
    once = [row for row in mine if row["attempt"] == 1]
    values = " / ".join(f"{row['last_loss']:.4f}" for row in once)
    scores = " / ".join(f"{row['search_score']:.4f}" for row in once)
    distinct = len({row["all_bits"] for row in once})
    says = "identical bits" if distinct == 1 else f"{distinct} different results of {counts}"
    text = f"{says}: loss {values}, score {scores}"
    again = [row for row in mine if row["attempt"] == 2]
    if again:
        first = next(row for row in once if row["stages"] == again[0]["stages"])
        same = first["all_bits"] == again[0]["all_bits"]
        text += f"; twice on {again[0]['stages']} stages: {'same' if same else 'different'}"
    return text


def draw(result: Result, figure: Any) -> None:
    """What each run ends with over its stages: a flat line is one result on any number of them."""
    spaces = list(dict.fromkeys(row["space"] for row in result.rows))
    figure.set_size_inches(5.5 * len(spaces), 6.4)
    figure.suptitle(result.title, fontsize=11)
    shown = {
        "mean_of_last_10": "supernet loss,\nmean of the last 10 steps",
        "search_score": "validation loss of\nthe best searched subnet",
    }
    axes = figure.subplots(len(shown), len(spaces), squeeze=False, sharex=True)
    for (name, label), line in zip(shown.items(), axes, strict=True):
        for space, axis in zip(spaces, line, strict=True):
            _draw_space(axis, [row for row in result.rows if row["space"] == space], name)
        line[0].set_ylabel(label)
    for space, top, bottom in zip(spaces, axes[0], axes[-1], strict=True):
        top.set_title(space, fontsize=10)
        bottom.set_xlabel("stages")
    axes[0][0].legend(fontsize="small")


def _draw_space(axis: Any, rows: list[dict[str, Any]], name: str) -> None:
    """One measure of the runs of one space; a cross is a second run of the same."""
    counts = sorted({row["stages"] for row in rows})
    for number, ((policy, label), marker) in enumerate(zip(NAMES.items(), "osD", strict=True)):
        mine = [row for row in rows if row["policy"] == policy]
        found, runs = len({row["all_bits"] for row in mine}), len(mine)
        text = f"{label}: {found} result{'s' if found > 1 else ''} of {runs} runs"
        once = [row for row in mine if row["attempt"] == 1]
        places = [counts.index(row["stages"]) for row in once]
        values = [row[name] for row in once]
        axis.plot(places, values, color=f"C{number}", marker=marker, label=text)
        for row in mine:
            if row["attempt"] == 2:
                where = (counts.index(row["stages"]), row[name])
                axis.plot(*where, "x", color=f"C{number}", markersize=9)
                axis.annotate("again", where, xytext=(-34, -3), textcoords="offset points",
                              fontsize=8)  # fmt: skip
    axis.set_xticks(range(len(counts)), map(str, counts))
