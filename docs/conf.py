"""How Sphinx makes a site of these pages: scripts/build_docs.sh."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe import __version__  # noqa: E402

project = "naspipe"
release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["*.yaml", "*.sbatch"]
html_theme = "furo"
html_title = "naspipe"
html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]

OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./(?!artifacts/[^)]*\.png)([^)#]*)[^)]*\)")
"""Links to files beside the pages: a site has their names alone."""


def setup(app: Any) -> None:
    """Name files that are no pages in place of links to them."""

    def named(_: Any, __: str, source: list[str]) -> None:
        source[0] = OUTSIDE.sub(lambda m: m[1] if m[1].startswith("`") else f"`{m[2]}`", source[0])

    app.connect("source-read", named)
