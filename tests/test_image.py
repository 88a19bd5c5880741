"""What the image is made of; whether its wheel works is for scripts/check_wheel.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.check_wheel import allowed, copy_context

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_bases_are_pinned_and_the_last_stage_is_not_root():
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(bases) == 2 and len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", bases[0])
    last = DOCKERFILE[DOCKERFILE.rindex("FROM ") :]
    assert re.search(r"^USER [1-9]\d*$", last, re.MULTILINE)


def test_its_head_says_what_it_takes_to_run():
    head = DOCKERFILE[: DOCKERFILE.index("FROM ")]
    user = re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[1]
    for said in (f"chown {user} runs", "--init", "--shm-size", "--entrypoint torchrun"):
        assert said in head
    for name in re.findall(r"^ARG (\w+)=", DOCKERFILE, re.MULTILINE):
        assert (f"#   {name}=" in head and f"${name}" in DOCKERFILE) or name.startswith("PIP_")


def test_only_what_the_wheel_is_made_of_goes_in(tmp_path):
    copy_context(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "naspipe", "search_spaces", "constraints.txt", "pyproject.toml", "setup.py", "README.md"
    }  # fmt: skip
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_list_that_leaves_nothing_out_is_refused():
    with pytest.raises(AssertionError, match="everything out"):
        allowed("!naspipe\n")
