"""Pictures of what a new user sees: README, front page of the docs, a report; light and dark.

They go to ``artifacts/report/``. Needs Chromium (``scripts/setup_browser.sh``) and the packages of
``./run_tests.sh``. Run it: ``python scripts/screenshots.py`` (a minute), or with ``--run RUN`` to
take a run that is there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.report.browser import Browser  # noqa: E402

PLACE = ROOT / "artifacts" / "report"
WIDTH, HEIGHT = 1200, 1400
RUN = ("cv.c3", "--data", "digits", "--sampler", "uniform", "--steps", "60", "--seed", "1",
       "--set", "data.batch_size=16", "--stages", "2")  # fmt: skip

STYLE = """
:root { color-scheme: light dark; }
body { max-width: 880px; margin: 40px auto; padding: 0 24px; font: 16px/1.5 sans-serif;
       background: light-dark(#fff, #0d1117); color: light-dark(#1f2328, #f0f6fc); }
a { color: light-dark(#0969da, #4493f8); } img { max-width: 100%; background: #fff; }
pre { background: light-dark(#f6f8fa, #151b23); padding: 14px; overflow: auto; font-size: 13.5px; }
code { background: light-dark(#eff1f3, #262c36); padding: 2px 4px; }
pre code { padding: 0; background: none; }
table { border-collapse: collapse; }
td, th { border: 1px solid light-dark(#d1d9e0, #3d444d); padding: 6px 12px; text-align: left; }
h1, h2 { border-bottom: 1px solid light-dark(#d1d9e0, #3d444d); padding-bottom: 6px; }
"""
"""As code hosts show such a page."""


def main() -> None:
    """Make all of them and print where they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="whose report to show")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        pages = {
            "readme": readme(place),
            "docs": docs(place),
            "report": report(arguments.run or trained(place), place),
        }
        for theme in ("light", "dark"):
            for name, page in pages.items():
                path = PLACE / f"{name}-{theme}.png"
                take(page, theme, path, place / f"{name}-{theme}")
                print(path.relative_to(ROOT), f"{path.stat().st_size / 1e3:.0f} kB")


def readme(place: Path) -> Path:
    """The README as a page whose pictures are those of the repository."""
    body = MarkdownIt("commonmark").enable("table").render((ROOT / "README.md").read_text("utf-8"))
    body = body.replace('src="artifacts/', f'src="{ROOT.as_uri()}/artifacts/')
    page = place / "readme.html"
    page.write_text(f"<!DOCTYPE html><meta charset=utf-8><style>{STYLE}</style>{body}", "utf-8")
    return page


def docs(place: Path) -> Path:
    """The front page of the site."""
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "-d", str(place / "seen")]
    subprocess.run([*words, str(ROOT / "docs"), str(place / "site")], check=True)
    return place / "site" / "index.html"


def trained(place: Path) -> Path:
    """A short run on real data."""
    words = [sys.executable, "-m", "naspipe", "train", *RUN, "--quiet", "--run-dir"]
    subprocess.run([*words, str(place / "two")], check=True, cwd=ROOT)
    return place / "two"


def report(run: Path, place: Path) -> Path:
    """The report of a run."""
    page = place / "report.html"
    words = [sys.executable, "-m", "naspipe", "report", str(run), "-o", str(page)]
    subprocess.run(words, check=True, cwd=ROOT)
    return page


def take(page: Path, theme: str, path: Path, profile: Path) -> None:
    """One picture of what is in view at the top of a page."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    with Browser(profile, WIDTH, HEIGHT) as browser:
        browser.call("Emulation.setEmulatedMedia", {"features": features}, browser._session)
        browser.open(page)
        if page.name == "report.html":
            browser.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
        browser.screenshot(path, full=False)


if __name__ == "__main__":
    main()
