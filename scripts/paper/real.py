"""One real run for an experiment: a JSON object as the argument, another on standard output.

Started by :func:`scripts.paper.common.real_run`, each time as a process of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import naspipe  # noqa: E402
import search_spaces  # noqa: E402
from naspipe.config.blocks import Shared  # noqa: E402
from naspipe.config.ids import Access, AccessKind  # noqa: E402
from naspipe.config.rules import parse_rule, steps_behind  # noqa: E402
from naspipe.config.space import Space  # noqa: E402
from naspipe.data.registry import open_data  # noqa: E402
from naspipe.inputs.named import find_workload  # noqa: E402
from naspipe.inputs.run import Run  # noqa: E402
from naspipe.jobs.workload import Workload  # noqa: E402
from naspipe.store.access_log import read_run_accesses  # noqa: E402
from naspipe.store.metrics import summarize  # noqa: E402
from naspipe.streams.samplers import draw_stream  # noqa: E402
from naspipe.streams.stream_file import read_stream  # noqa: E402
from scripts.tiny_workload import flowing  # noqa: E402

SEARCH_SEED = 20_220_228
"""Of the subnets that the search looks at; the same for every run that is compared."""


def space_of(job: dict[str, Any], named: Workload) -> Space:
    """The space as it is, or with another rule for the layers that lag, if the job names one."""
    if "rule" not in job:
        return named.space
    layers = [block for block in named.space.blocks if isinstance(block, Shared)]
    rule = parse_rule(job["rule"])
    return named.space.with_rules(
        {layer.name: rule for layer in layers if steps_behind(layer.rule) is not None}
    )


def train(job: dict[str, Any], named: Workload, path: Path) -> Run:
    """The run that ``job`` asks for."""
    recipe = named.recipe
    return naspipe.train(
        space_of(job, named),
        named.data,
        named.loss,
        steps=job["steps"],
        optimizer=job.get("optimizer", recipe.optimizer),
        lr=job.get("lr", recipe.lr),
        optimizer_options=job.get("options", recipe.optimizer_options),
        sampler=job.get("sampler", "uniform"),
        seed=job.get("seed", 0),
        stages=job["stages"],
        policy=job.get("policy", "csp"),
        bulk=job.get("bulk", 0),
        run_dir=path,
        execution=job.get("execution"),
        recipe=job.get("recipe"),
    )


def loss_times(accesses: list[Access], blocks: int) -> dict[int, float]:
    """Seconds from the first access to the end of each subnet's last forward: its loss."""
    start = min(access.start_ns for access in accesses)
    return {
        access.sequence_id: (access.end_ns - start) / 1e9
        for access in accesses
        if access.kind is AccessKind.FORWARD and access.layer.block == blocks - 1
    }


def search(job: dict[str, Any], named: Workload, run: Run) -> dict[str, Any]:
    """The best of some sampled subnets by validation loss with the weights of the supernet.

    Subnets are drawn among the candidates that were trained.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    space = named.space
    chains = [space.chain(choices) for choices in read_stream(run.directory.stream)]
    trained = [sorted({chain[block] for chain in chains}) for block in range(len(space))]
    draws = draw_stream("uniform", [len(found) for found in trained], SEARCH_SEED, job["search"])
    batches = validation(job["space"], job.get("scale", "tiny"), job["batches"])
    scores = [
        validation_loss(space, run, [c[k] for c, k in zip(trained, draw, strict=True)], batches,
                        named.loss)
        for draw in draws
    ]  # fmt: skip
    best = min(range(len(scores)), key=lambda number: (scores[number], number))
    return {"best_subnet": best, "best_score": scores[best], "score_bits": scores[best].hex()}


def validation(space: str, scale: str, count: int) -> list[dict[str, torch.Tensor]]:
    """The first batches of the validation split; the test split where there is none."""
    chosen = search_spaces.defaults(space, scale)
    split = "valid" if chosen.max_tokens is not None else "test"
    data = open_data(
        chosen.data, max_tokens=chosen.max_tokens, batch_size=chosen.batch_size, split=split
    )
    return [data(0, number) for number in range(min(count, data.batches_per_epoch))]


def validation_loss(
    space: Space, run: Run, chain: list[int], batches: list[dict[str, torch.Tensor]], loss: Any
) -> float:
    """Mean loss of one subnet; layers keep their parameters and buffers."""
    modules = [trained_layer(space, run, *place).eval() for place in enumerate(chain)]
    total = 0.0
    with torch.no_grad():
        for batch in batches:
            state: tuple[torch.Tensor, ...] = ()
            for block, module in enumerate(modules):
                out = module(*state, *(batch[name] for name in space.fields(block)))
                state = out if isinstance(out, tuple) else (out,)
            total += float(loss(*state, batch["target"]))
    return total / len(batches)


def trained_layer(space: Space, run: Run, block: int, candidate: int) -> torch.nn.Module:
    """A layer of the chain, as the run left it."""
    label = space.label(block, candidate)
    if isinstance(space.blocks[block], Shared):
        return run.shared(label)
    return run.layer(*map(int, label.split(".")))


def main() -> None:
    """Train, measure, print."""
    job = json.loads(sys.argv[1])
    named = find_workload(job["space"], job.get("scale", "tiny"), job.get("data"), None)
    if job.get("flows"):
        named = flowing(named)
    with tempfile.TemporaryDirectory() as scratch:
        run = train(job, named, Path(scratch) / "run")
        accesses = read_run_accesses(run.directory.path)
        found: dict[str, Any] = {
            **summarize(accesses, job["stages"])._asdict(),
            "losses": run.losses,
            "loss_bits": [loss.bits for loss in run.directory.read_losses()],
            "order": run.manifest["execution"]["order"],
            "pushed_bytes": sum(
                int(stage["pushed_bytes"]) for stage in run.manifest["measured"]["stages"]
            ),
        }
        if job.get("curve"):
            times = loss_times(accesses, len(named.space))
            found["seconds_of_loss"] = [times[y] for y in range(job["steps"])]
        if layer := job.get("layer"):
            found["access_order"] = run.access_order(*map(int, layer.split(".")))
        if job.get("search"):
            found["search"] = search(job, named, run)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
