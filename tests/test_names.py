"""What things are called: one name for one idea, in files and in words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePath

from tests.test_architecture import ROOT, product

SAME_IDEA = {
    "api.py": "2026-11-22: the public function of a part of the frontend",
    "balance.py": "2026-11-23: even shares, of blocks for stages and of teachers for students",
    "choices.py": "2026-11-22: what subnets are chosen from, of each family of spaces",
    "commands.py": "2026-11-23: what is asked for by what decides: a stage's controller, a desk",
    "compare.py": "2026-11-22: a command, and what it calls",
    "driver.py": "2026-11-22: carries commands out, in processes and on the virtual clock",
    "events.py": "2026-11-23: what is told to what decides: a stage's controller, a desk",
    "layers.py": "2026-11-22: the torch modules, of each family of spaces",
    "log.py": "2026-11-22: a command, and the file that it prints",
    "ports.py": "2026-11-22: the protocols of a room",
    "spec.py": "2026-11-22: the specification, of each family of spaces",
    "strategies.py": "2026-11-22: strategies by name: of naspipe, of NNI, and whichever is given",
}
"""Names that may occur twice: to the idea and the date."""


def repeated(paths: Iterable[str]) -> dict[str, list[str]]:
    """Names that more than one file has, with the files."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        places[PurePath(path).name].append(path)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def test_files_share_a_name_only_for_the_same_idea() -> None:
    found = repeated(path for path in product() if not path.endswith("__init__.py"))
    extra = {name: paths for name, paths in found.items() if name not in SAME_IDEA}
    assert extra == {}, "rename one, or say which idea they share"
    assert sorted(found) == sorted(SAME_IDEA), "drop from the list what occurs once"


def test_repeated_names_are_seen() -> None:
    assert repeated(["a/plan.py", "b/plan.py", "a/run.py"]) == {
        "plan.py": ["a/plan.py", "b/plan.py"]
    }


OTHER_WORDS = {
    r"block[ _]steps?": "an access: a step is made of passes and ends in an optimizer step",
    r"(forward|backward)[ _]pass\b": "a forward, a backward: a pass is both",
    r"per[- ]step loss": "the loss of a pass",
    r"compute[ _]stream": "a GPU's queue: a stream is the list of subnets",
}
"""Phrases that use *step*, *pass* or *stream* for something else: to what to say instead."""


def wrong_words(text: str) -> list[str]:
    """What to say instead, for each phrase on one line of a text, whatever its case."""
    return [say for phrase, say in OTHER_WORDS.items() if re.search(phrase, text, re.IGNORECASE)]


def test_step_pass_and_stream_mean_one_thing_each() -> None:
    texts = {path: (ROOT / path).read_text("utf-8") for path in product()}
    assert {path: found for path, text in texts.items() if (found := wrong_words(text))} == {}


def test_wrong_words_are_seen() -> None:
    assert len(wrong_words("the Forward pass of block_steps")) == 2
    assert wrong_words("a forward passes on what the block hands it in one step") == []
