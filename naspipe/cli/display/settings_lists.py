"""Lists of all settings, for ``naspipe train --help`` and for ``docs/settings.md``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from naspipe.config.definition import DATA_SIZES, MOMENTUM, Definition, Execution, Recipe
from naspipe.config.settings import Setting, declared, groups

_HELP_WIDTH = 100
_PAGE_WIDTH = 150
_INTRODUCTION = (
    "This page is made from the declarations of the settings (`scripts/write_settings.py`): of the "
    "recipe in `naspipe/config/recipe.py`, of the execution in "
    "`naspipe/config/execution.py`, of the definition in `naspipe/config/definition.py`. "
    "`--set key=value` reaches all but the definition's; some have an option of their own, too. In "
    "Python they go by the same keys, as keywords or in a mapping: `npp.train(..., window=8, "
    'passes="sandwich:2", settings={"rule.stem": "lag(2)"})`, `npp.Execution(stages=2, window=8)`. '
    "Manifests have the same keys. Behind = is what is taken unless something is said; what is "
    "allowed stands in brackets."
)
_OTHERS = """\
- `optimizer.OPTION`: a further argument of the optimizer, as in `--set optimizer.momentum=0.9`.
- `parameter_groups`: parameters with options of their own, as in
  `--set 'parameter_groups=[{"match": ["bias", "norm"], "weight_decay": 0}]'`;
  [optimizers](optimizers.md) says how.
- `rule.SHARED_LAYER`: exact, frozen, lag(K) or every(M), as in `--set "rule.stem=lag(8)"`;
  [rules](rules.md) says which for what.
"""


def key_list(execution: type = Execution) -> str:
    """The keys of ``--set`` in a few lines, for help."""
    lines = ["settings: --set KEY=VALUE; docs/settings.md says what each is"]
    for title, settings in _sections(execution):
        others = (
            ("optimizer.OPTION", "parameter_groups", "rule.SHARED_LAYER")
            if title == "recipe"
            else ()
        )
        keys = [*settings, *others]
        lines += textwrap.wrap(
            f"{title}: {', '.join(keys)}",
            _HELP_WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    return "\n".join(lines) + "\n"


def page(execution: type = Execution) -> str:
    """The whole of ``docs/settings.md``."""
    parts = [
        "# Settings\n\n",
        textwrap.fill(_INTRODUCTION, _PAGE_WIDTH, break_on_hyphens=False),
        "\n\n## What defines a run, beside its space, data and recipe\n\n",
        *map(_entry, declared(Definition).values()),
    ]
    for title, settings in _sections(execution):
        if title == "recipe":
            parts += ["\n## The recipe: how every step is taken\n\n", *_entries(settings), _OTHERS]
        elif title == "data":
            parts += ["\n## Sizes of batches\n\n", *_entries(settings)]
        elif title == "momentum":
            parts += ["\n## A teacher that follows the student\n\n", *_entries(settings)]
            parts.append("\n## The execution: how a run is carried out, which changes no bit\n")
        else:
            parts += [f"\n### {title.capitalize()}\n\n", *_entries(settings)]
    return "".join(parts)


def _sections(execution: type) -> Iterator[tuple[str, Mapping[str, Setting]]]:
    yield "recipe", declared(Recipe)
    yield "data", DATA_SIZES
    yield "momentum", MOMENTUM
    known = declared(execution)
    for name, title in groups(execution).items():
        yield title, {key: each for key, each in known.items() if each.group == name}


def _entries(settings: Mapping[str, Setting]) -> list[str]:
    return [_entry(each) for each in settings.values()]


def _entry(setting: Setting) -> str:
    option = f", `{setting.option}`" if setting.flag else ""
    bounds = "; ".join(each.text for each in setting.allowed) or setting.kind_name
    said = ", ".join(text for text in (bounds, setting.unit) if text)
    example = f" As in `--set {setting.key}={setting.example}`." if setting.example else ""
    return (
        textwrap.fill(
            f"- `{setting.key}{_usual(setting)}`{option} ({said}): {setting.help}{example}",
            _PAGE_WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        + "\n"
    )


def _usual(setting: Setting) -> str:
    """What is taken where nothing is said, if that is one value."""
    value = setting.usual
    if value is None:
        return ""
    if setting.kind is float:
        return f"={value:g}"
    return f"={value}".lower() if setting.kind is bool else f"={value}"
