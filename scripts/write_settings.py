"""Write docs/settings.md anew, after a setting was declared or changed."""

from __future__ import annotations

import textwrap
from pathlib import Path

from naspipe.cli.options import sections
from naspipe.config.definition import Definition
from naspipe.config.execution import Execution
from naspipe.config.settings import Setting, declared

_PAGE_WIDTH = 150
_INTRODUCTION = (
    "This page is generated from the declarations of the settings (`scripts/write_settings.py`): "
    "the recipe in `naspipe/config/recipe.py`, the execution in `naspipe/config/execution.py` and "
    "the definition in `naspipe/config/definition.py`. `--set key=value` changes any setting "
    "except those of the definition; some settings also have a command-line option of their own. "
    "In Python, settings have the same keys, as keyword arguments or in a mapping: "
    '`npp.train(..., window=8, passes="sandwich:2", settings={"rule.stem": "lag(2)"})`, '
    "`npp.Execution(stages=2, window=8)`. Manifests use the same keys. Each entry shows the "
    "default value after =, if there is one, and the allowed values in parentheses."
)
_OTHERS = """\
- `optimizer.OPTION`: further argument of the optimizer. Example: `--set optimizer.momentum=0.9`.
- `parameter_groups`: parameters with their own optimizer options; see [optimizers](optimizers.md).
  Example: `--set 'parameter_groups=[{"match": ["bias", "norm"], "weight_decay": 0}]'`.
- `rule.SHARED_LAYER`: rule of a shared layer: exact, frozen, lag(K) or every(M); see
  [rules](rules.md) for which rule to use. Example: `--set "rule.stem=lag(8)"`.
"""


def page(execution: type = Execution) -> str:
    """The text of ``docs/settings.md``."""
    parts = [
        "# Settings\n\n",
        textwrap.fill(_INTRODUCTION, _PAGE_WIDTH, break_on_hyphens=False),
        "\n\n## Definition of a run, in addition to its space, data and recipe\n\n",
        *map(_entry, declared(Definition).values()),
    ]
    for title, settings in sections(execution):
        entries = map(_entry, settings.values())
        if title == "recipe":
            parts += ["\n## Recipe: how each step is trained\n\n", *entries, _OTHERS]
        elif title == "data":
            parts += ["\n## Batch sizes\n\n", *entries]
        elif title == "momentum":
            parts += ["\n## Momentum teacher\n\n", *entries]
            parts.append(
                "\n## Execution: how a run is carried out, without effect on its results\n"
            )
        else:
            parts += [f"\n### {title.capitalize()}\n\n", *entries]
    return "".join(parts)


def _entry(setting: Setting) -> str:
    option = f", `{setting.option}`" if setting.flag else ""
    bounds = "; ".join(each.text for each in setting.allowed) or setting.kind_name
    said = ", ".join(text for text in (bounds, setting.unit) if text)
    example = f" Example: `--set {setting.key}={setting.example}`." if setting.example else ""
    value = setting.usual
    usual = ""
    if value is not None:
        usual = f"={value:g}" if setting.kind is float else f"={value}"
        usual = usual.lower() if setting.kind is bool else usual
    text = f"- `{setting.key}{usual}`{option} ({said}): {setting.help}{example}"
    return (
        textwrap.fill(
            text,
            _PAGE_WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        + "\n"
    )


if __name__ == "__main__":
    place = Path(__file__).parents[1] / "docs" / "settings.md"
    place.write_text(page(), "utf-8")
    print(place)
