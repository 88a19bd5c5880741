"""artifacts/README.md: one table of what was measured beside what the paper says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_HEAD = """\
# Results

Written by `scripts/paper/run.py`, `scripts/bench_peers.py` and `scripts/bench_streams.py` from the
`result.json` beside each figure. Simulated figures follow from published or measured costs and
hold on any machine; real ones hold for the machine that their file names.

| experiment | command | what | ours | the paper |
| --- | --- | --- | --- | --- |
"""


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
    text = _HEAD + "\n".join(lines) + "\n\n## What differs\n\n" + "\n".join(notes) + "\n"
    (directory / "README.md").write_text(text)


def _lines(name: str, content: dict[str, Any]) -> list[str]:
    """Rows of one experiment; its name and command stand in the first."""
    lines = []
    for place, headline in enumerate(content["headlines"]):
        first = [f"[{name}]({name}/)", f"`{content['command']}`"] if place == 0 else ["", ""]
        cells = [*first, headline["what"], headline["ours"], headline["paper"]]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return lines
