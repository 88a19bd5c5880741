"""Write docs/settings.md anew, after a setting was declared or changed."""

from __future__ import annotations

from pathlib import Path

from naspipe.cli.options import page

if __name__ == "__main__":
    place = Path(__file__).parents[1] / "docs" / "settings.md"
    place.write_text(page(), "utf-8")
    print(place)
