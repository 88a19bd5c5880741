"""artifacts/README.md: one table of what was measured beside what the paper says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_HEAD = """\
# Results

Written by `scripts/paper/run.py` and `scripts/bench peers` from the `result.json` beside each
figure. Simulated figures follow from published or measured costs and
hold on any machine; real ones hold for the machine that they were measured on.

## Beside the paper

| experiment | command | what | ours | the paper |
| --- | --- | --- | --- | --- |
"""


_OTHER_HEAD = """
## Everything else

| experiment | command | what |
| --- | --- | --- |"""
_REMOVED = "removed after the measurement; see the history"
_OTHERS = {
    "bits": ("check_bits.py", "real spaces on 1 to 4 stages: bits of the plain loop"),
    "blockwise": ("bench blockwise", "blockwise distillation: speed, and what students learn"),
    "bound": (_REMOVED, "causal bounds of the seven spaces"),
    "code": ("compare_code.py", "short runs by two versions of the code: bits, and speeds"),
    "elastic": ("check_elastic.py, bench elastic", "labels from elsewhere: bits, and costs"),
    "fairseq": ("check_fairseq.py", "batches compared with fairseq's own"),
    "faults": (
        "fault_storm.py, fuzz.py, check_resume.py, check_hosts.py, bench settings",
        "kills and recoveries, fuzzing, resumes, several hosts, what checkpoints cost",
    ),
    "free_stages": (_REMOVED, "what blocks would gain on any stage that is free, simulated"),
    "gpu": ("gpu_check.sh", "bits and swapping on a GPU"),
    "groups": ("check_groups.py, bench settings", "groups: simulated on 8 devices, bits, speed"),
    "image": ("check_wheel.py", "the wheel alone with its dependencies, as a user uses it"),
    "loss_curve": (_REMOVED, "loss over 300 steps of nlp.c3"),
    "memory": ("check_memory.py --all", "bits under memory budgets"),
    "memory_model": (_REMOVED, "batches that a device's memory admits"),
    "nni": ("check_nni.py", "spaces of NNI's hub: bits of a plain loop"),
    "partition": (_REMOVED, "balanced over static partitions, simulated"),
    "races": ("check_races.py", "orders on a stand-in for a GPU, and missing ones found"),
    "ranking": (_REMOVED, "what a supernet's ranking is worth: records of a study"),
    "records": (_REMOVED, "bytes of long records, and what reading them costs"),
    "report": ("naspipe report", "a page of a real run, as Chromium shows it"),
    "residency": ("bench emulated, bench settings", "hit rates and stalls, simulated and real"),
    "rules": ("bench rules", "what it costs that layers in front are read late"),
    "scaling": ("bench settings", "two stages over one, one over the plain loop"),
    "schedules": ("bench schedules", "bubbles of the orders beside the bound, simulated"),
    "search": ("bench search", "search, its speed, and what validation costs"),
    "simulator": ("bench accuracy, bench simulator", "simulated against real; its speed"),
    "startup": (_REMOVED, "from a start to the first loss; 200 steps beside the plain loop"),
    "stateless": (_REMOVED, "what it is worth to know which layers have no state"),
    "step_costs": ("bench step_costs", "where the time of a step goes beside the modules"),
    "teachers": ("bench teachers", "teachers in the pipeline: speed and what students learn"),
    "wire": ("bench wire", "large activations between processes"),
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
