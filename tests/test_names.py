"""What files are called: two that share a name are the same idea in two rooms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePath

from tests.test_architecture import product

SAME_IDEA = {
    "api.py": "2026-11-22: the public function of a part of the frontend",
    "choices.py": "2026-11-22: what subnets are chosen from, of each family of spaces",
    "compare.py": "2026-11-22: a command, and what it calls",
    "driver.py": "2026-11-22: carries commands out, in processes and on the virtual clock",
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
