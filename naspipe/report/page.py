"""The page: one HTML file with its tables, its script and plotly.js inside, for use offline.

A content security policy in the file keeps the browser from requesting anything.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from naspipe.trace.storage.whole_files import atomic_file

_SCRIPTS = (
    "timeline.js",
    "sums.js",
    "teachers.js",
    "charts.js",
    "search.js",
    "winning.js",
    "alone.js",
    "page.js",
)


def render_page(title: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """The page's HTML.

    Args:
        title: plain text for the heading.
        runs: the tables of each run, from :func:`naspipe.report.run_tables.run_tables`.
    """
    from plotly.offline import get_plotlyjs  # takes half a second to import

    return Template(_asset("page.html")).substitute(
        title=title.replace("&", "&amp;").replace("<", "&lt;"),
        style=_asset("style.css"),
        tables=_packed(json.dumps({"runs": runs}, allow_nan=False, separators=(",", ":"))),
        plotly=_packed(get_plotlyjs()),  # a third of its length
        script="\n".join(_asset(name) for name in _SCRIPTS),
    )


def write_page(path: Path, title: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """Write the page; it appears whole or not at all, in place of a file of that name."""
    text = render_page(title, runs)
    with atomic_file(path) as file:
        file.write(text.encode())


def _packed(text: str) -> str:
    """A text, deflated, in base64: browsers unpack it with ``DecompressionStream``."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _asset(name: str) -> str:
    return files("naspipe.report").joinpath("assets", name).read_text("utf-8")
