"""The pages become a site without a warning."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.test_pages import PAGES, PLANS, ROOT, WALK

ENTRY = re.compile(r'toctree-l1"><a class="reference internal" href="(.+?)\.html')


def test_the_pages_build(tmp_path):
    pytest.importorskip("sphinx")
    words = ["-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "seen"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, ROOT / "docs", tmp_path / "site"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "site/index.html").read_text("utf-8")
    assert "_images/timeline.png" in front
    pages = {page.stem for page in PAGES if page.parent == ROOT / "docs"} - {"index"}
    internals = {f"internals/{page.stem}" for page in (*PLANS, WALK)}
    assert pages | internals == set(ENTRY.findall(front))
    for page in PAGES:
        if page.parent == ROOT / "docs":  # Sphinx has pages of its own, such as search.html
            head = page.read_text("utf-8").splitlines()[0].removeprefix("# ").replace("'", "\u2019")
            made = (tmp_path / "site" / f"{page.stem}.html").read_text("utf-8")
            assert f"<h1>{head}<a" in made, page.name
