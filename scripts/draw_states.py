"""Draw docs/states.md anew: the states of tasks and layers, as simulated pipelines show them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.states_seen import GONE, NOWHERE, Drawings, Seen, drawn

PLACE = Path(__file__).parents[1] / "docs" / "states.md"

MEANINGS = {
    "waits for the chain": "neither the block before nor the one behind has handed its tensors on",
    "waits for a version": "its next block reads a version that is not written, or not handed over",
    "waits for a tap or a field": "its next block needs a lesson, a tapped input or a late field",
    "ready": "clear and its input is here; it is queued in dispatch order",
    "chosen": "its turn; layers of its next blocks are loaded if they are not on the device",
    "running": "blocks of it are commanded",
    "computed": "its blocks on this stage are through, and its output is handed on",
    "owes WRITEs": "its gradients are here; earlier WRITEs, readers or a load are in the way",
    "held by a gate": "its step's contributions to an exchange are not all here",
    "being written": "at least one of its WRITEs is commanded",
    "written": "all its WRITEs are done; other tasks of its subnet are not",
    "retired": "the stage has nothing left to do for the subnet",
    "absent": "only host memory has it",
    "loading": "on its way to the device; its bytes count from here on",
    "resident": "on the device; a clean one that nothing holds may be evicted, unless it is shared",
    "in use": "pinned, by a commanded block or WRITE",
    "dirty": "newer than what host memory has; it must be saved before it is evicted or pushed",
    "being saved": "on its way to host memory",
}
"""Of every state, or mark of one: all that stands here must occur, and all that occurs here."""

HEAD = """# States

This page is drawn by `scripts/draw_states.py`. It runs small pipelines of every kind on the virtual
clock. It reads the states off the controllers (`naspipe/engine/controller.py`,
`naspipe/engine/work.py`) and the ledgers (`naspipe/engine/ledger.py`). An arrow is a change that
was seen. Beside it stands the event that caused it. A test draws the page again and compares.
What the states mean stands at the end.
"""

CHAPTERS = {
    "forwards": (
        "A forward on its stage",
        "Where several events can cause a change, the table below the drawing lists them.",
    ),
    "backwards": (
        "A backward on its stage, and its WRITEs",
        "A chain with losses before its end has several backwards. Each goes this way.",
    ),
    "layers": (
        "A layer on a stage's device, with a memory budget",
        "Causes are the commands and events that go with a change.",
    ),
    "shared": (
        "A shared layer, with a memory budget",
        "It stays once it is loaded. It is never saved on the way.",
    ),
}


def chapter(title: str, text: str, seen: Seen) -> Iterator[str]:
    """One drawing, and a table of the changes that have several causes."""
    yield from (f"## {title}", "", text, "", "```mermaid", "stateDiagram-v2")
    states = sorted({state for change in seen for state in change} - {NOWHERE})
    names = {state: state.replace(", ", "_").replace(" ", "_") for state in states}
    names[NOWHERE] = NOWHERE
    yield from (f'    state "{state}" as {names[state]}' for state in states)
    several = {change: sorted(causes) for change, causes in sorted(seen.items()) if len(causes) > 1}
    for (before, after), causes in sorted(seen.items()):
        cause = "several events" if len(causes) > 1 else min(causes)
        yield f"    {names[before]} --> {names[after]}: {cause}"
    if GONE in states:
        yield f"    {names[GONE]} --> [*]"
    yield from ("```", "")
    if several:
        yield from ("| from | to | caused by |", "| --- | --- | --- |")
        for (before, after), causes in several.items():
            yield f"| {before} | {after} | {', '.join(causes)} |"
        yield ""


def page(drawings: Drawings) -> str:
    """The whole of ``docs/states.md``.

    Raises:
        ValueError: when the states that occur are not those that :data:`MEANINGS` explains.
    """
    lines = [HEAD]
    found: set[str] = set()
    for name, (title, text) in CHAPTERS.items():
        seen: Seen = getattr(drawings, name)
        lines += chapter(title, text, seen)
        found |= {mark for change in seen for state in change for mark in state.split(", ")}
    if odd := (found - {NOWHERE}) ^ set(MEANINGS):
        raise ValueError(f"expected a meaning for each state that occurs, found {sorted(odd)}")
    lines += ["## What the states mean", "", "| state | meaning |", "| --- | --- |"]
    lines += [f"| {state} | {meaning} |" for state, meaning in MEANINGS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PLACE.write_text(page(drawn()), "utf-8")
    print(PLACE)
