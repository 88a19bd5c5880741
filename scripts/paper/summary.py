"""artifacts/README.md: one table of what was measured beside what the paper says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_HEAD = """\
# Results

Written by `scripts/paper/run.py`, `scripts/bench_peers.py` and `scripts/bench_streams.py` from the
`result.json` beside each figure. Simulated figures follow from published or measured costs and
hold on any machine; real ones hold for the machine that they were measured on.

## Beside the paper

| experiment | command | what | ours | the paper |
| --- | --- | --- | --- | --- |
"""


_OTHER_HEAD = """
## Everything else

| experiment | command | what |
| --- | --- | --- |"""
_OTHERS = {
    "blockwise": (
        "scripts/bench_blockwise.py, blockwise_simulated.py, distill_images.py, rank_paths.py",
        "blockwise distillation: speed, bubbles, and what its students learn",
    ),
    "elastic": (
        "scripts/check_elastic.py, bench_elastic.py",
        "labels from everywhere: bits; what elastic teachers cost",
    ),
    "records": (
        "scripts/bench_records.py, bench_long_run.py",
        "bytes of long records, and what `log`, `compare` and `report` of them cost",
    ),
    "stateless": (
        "scripts/bench_stateless.py",
        "what it is worth to know which layers have no state",
    ),
    "teachers": (
        "scripts/bench_teachers.py, teach_images.py",
        "teachers in the pipeline: speed and what students learn",
    ),
    "bits": ("scripts/check_bits.py", "real spaces on 1 to 4 stages: bits of the plain loop"),
    "code": (
        "scripts/compare_code.py",
        "short runs by two versions of the code: bits, and speeds in alternation",
    ),
    "bound": ("scripts/bench_bound.py", "causal bounds of the seven spaces"),
    "fairseq": ("scripts/check_fairseq.py", "batches compared with fairseq's own"),
    "faults": (
        "scripts/fault_storm.py, fuzz.py, check_resume.py, check_hosts.py, bench_checkpoints.py",
        "kills and recoveries, fuzzing, resumes, several hosts, what checkpoints cost",
    ),
    "free_stages": (
        "scripts/bench_free_stages.py",
        "what blocks would gain on any stage that is free, simulated",
    ),
    "gpu": ("scripts/gpu_check.sh", "bits and swapping on a GPU"),
    "groups": (
        "scripts/bench_groups.py, bench_groups_real.py, check_groups.py, check_plan.py",
        "groups: simulated on 8 devices, measured, their bits, and what `naspipe plan` names first",
    ),
    "image": (
        "scripts/check_wheel.py",
        "the wheel alone with its dependencies, as a user uses it",
    ),
    "ranking": (
        "scripts/bench_ranking.py",
        "what a supernet's ranking is worth: records of its units, kept over time",
    ),
    "rules": ("scripts/rule_prices.py", "what it costs that layers in front are read late"),
    "loss_curve": ("scripts/loss_curve.py", "loss over 300 steps of nlp.c3"),
    "memory": ("scripts/check_memory.py --all", "bits under memory budgets"),
    "memory_model": ("scripts/bench_memory_model.py", "batches that a device's memory admits"),
    "nni": ("scripts/check_nni.py", "spaces of NNI's hub: bits of a plain loop"),
    "partition": ("scripts/bench_partition.py", "balanced over static partitions, simulated"),
    "wire": ("scripts/bench_wire.py", "large activations between processes"),
    "races": ("scripts/check_races.py", "orders on a stand-in for a GPU, and missing ones found"),
    "report": ("naspipe report", "a page of a real run, as Chromium shows it"),
    "residency": (
        "scripts/bench_residency.py, bench_emulated.py",
        "hit rates and stalls, simulated and real",
    ),
    "scaling": ("scripts/bench_scaling.py", "two stages over one, one over the plain loop"),
    "schedules": (
        "scripts/bench_schedules.py",
        "bubbles of the orders beside the bound, simulated",
    ),
    "search": (
        "scripts/search_images.py, search_text.py, bench_search.py, bench_validation.py",
        "search, its speed, and what validation beside the training costs",
    ),
    "step_costs": ("scripts/step_costs.py", "where the time of a step goes beside the modules"),
    "startup": (
        "scripts/bench_startup.py, bench_plain_loop.py",
        "from a start to the first loss of ten blocks; 200 steps beside the plain loop",
    ),
    "simulator": (
        "scripts/bench_sim_accuracy.py, bench_simulator.py",
        "simulated against real; its speed",
    ),
}
"""Directories whose files have a form of their own: what makes them, and what they hold."""


def write_summary(directory: Path) -> None:
    """Write the table of every ``result.json`` below ``directory`` that has headlines."""
    found = {}
    for path in sorted(directory.glob("*/result.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and content.get("headlines"):
            found[path.parent.name] = content
    lines = [line for name, content in found.items() for line in _lines(name, content)]
    notes = [
        f"- **[{name}]({name}/)** ({content['kind']}): {content['differs']}."
        for name, content in found.items()
    ]
    others = [
        f"| [{path.name}]({path.name}/) | {_commands(path.name)} |"
        for path in sorted(directory.iterdir())
        if path.is_dir() and path.name not in found
    ]
    text = "\n".join(
        [_HEAD + "\n".join(lines), "\n## What differs\n", *notes, _OTHER_HEAD, *others, ""]
    )
    (directory / "README.md").write_text(text)


def _commands(name: str) -> str:
    commands, what = _OTHERS.get(name, ("?", "?"))
    return f"`{commands}` | {what}"


def _lines(name: str, content: dict[str, Any]) -> list[str]:
    """Rows of one experiment; its name and command stand in the first."""
    lines = []
    for place, headline in enumerate(content["headlines"]):
        first = [f"[{name}]({name}/)", f"`{content['command']}`"] if place == 0 else ["", ""]
        cells = [*first, headline["what"], headline["ours"], headline["paper"]]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return lines
