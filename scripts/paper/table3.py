"""Table 3: what the number of stages does to a supernet and to a search on it; real training."""

from __future__ import annotations

from typing import Any

from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, real_run

STEPS = 60
SEARCHED, BATCHES = 8, 4
NAMES = {"csp": "CSP (naspipe)", "bsp": "BSP (GPipe)", "asp": "ASP (PipeDream)"}


def run(options: Options) -> Result:
    """Each policy on each number of stages; asp twice on the most."""
    space = (options.spaces or ("nlp.c3",))[0]
    steps, counts = options.steps or STEPS, options.stages or (1, 2, 4)
    runs = [(policy, stages, 1) for policy in NAMES for stages in counts]
    runs.append(("asp", max(counts), 2))
    rows: list[dict[str, Any]] = []
    for policy, stages, attempt in runs:
        found = real_run(
            space=space, scale=options.scale, policy=policy, stages=stages, steps=steps,
            search=SEARCHED, batches=BATCHES,
        )  # fmt: skip
        rows.append(
            {
                "policy": policy,
                "stages": stages,
                "attempt": attempt,
                "last_loss": found["losses"][-1],
                "mean_of_last_10": sum(found["losses"][-10:]) / len(found["losses"][-10:]),
                "search_score": found["search"]["best_score"],
                "best_subnet": found["search"]["best_subnet"],
                "all_bits": digest([*found["loss_bits"], found["search"]["score_bits"]]),
            }
        )
    verdicts = {policy: len({r["all_bits"] for r in rows if r["policy"] == policy}) for policy in
                NAMES}  # fmt: skip
    return Result(
        experiment="table3",
        title=f"Table 3: {space} {options.scale}, {steps} steps on {counts} stages",
        kind="real",
        rows=rows,
        headlines=[
            Headline(NAMES[policy], verdict_of(rows, policy, len(counts)), published.TABLE3[policy])
            for policy in NAMES
        ],
        differs=(
            "a tiny space on CPU processes and 1, 2 and 4 stages instead of 4, 8 and 16 GPUs; the "
            f"score is the validation loss (lower is better) of the best of {SEARCHED} sampled "
            "subnets with inherited weights, not BLEU after a whole search; on one stage BSP and "
            "ASP are the plain loop"
        ),
        settings={"space": space, "scale": options.scale, "steps": steps, "batches": BATCHES},
        holds=verdicts["csp"] == 1 and verdicts["bsp"] > 1 and verdicts["asp"] > 1,
    )


def digest(parts: list[str]) -> str:
    """Twelve hex digits that differ when any loss or the score differs in one bit."""
    import hashlib

    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]


def verdict_of(rows: list[dict[str, Any]], policy: str, counts: int) -> str:
    """In words, from the rows of one policy."""
    mine = [row for row in rows if row["policy"] == policy]
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
    """Each run's search score over its supernet loss: causal runs lie on one point."""
    figure.set_size_inches(7, 4.6)
    axis = figure.subplots()
    for (policy, label), marker in zip(NAMES.items(), "osD", strict=True):
        mine = [row for row in result.rows if row["policy"] == policy]
        axis.scatter(
            [row["mean_of_last_10"] for row in mine],
            [row["search_score"] for row in mine],
            s=110 if policy == "csp" else 45,
            marker=marker,
            label=f"{label}: {len({row['all_bits'] for row in mine})} results of {len(mine)} runs",
            alpha=0.8,
        )
        for row in mine:
            if policy != "csp" and row["stages"] > 1:
                again = " again" if row["attempt"] == 2 else ""
                where = (row["mean_of_last_10"], row["search_score"])
                text = f"{row['stages']} stages{again}"
                axis.annotate(text, where, xytext=(7, 3), textcoords="offset points", fontsize=8)
    axis.margins(0.18)
    axis.set_xlabel("supernet loss, mean of the last 10 steps")
    axis.set_ylabel("validation loss of the best subnet")
    axis.set_title(result.title)
    axis.legend(fontsize="small")
