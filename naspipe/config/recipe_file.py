"""Recipe files: small TOML files with the settings that define a run.

    sampler = "uniform"
    lr = 0.03

    [optimizer]
    name = "SGD"
    momentum = 0.9

    [rule]
    stem = "lag(4)"

The keys of a table are those of ``--set`` without the table's name and the dot; ``optimizer.name``
is the optimizer itself. A recipe does not say how a run is carried out, except for its validation
(``validate_every``, ...), which papers name and which changes no bit. naspipe's own recipes are in
``naspipe/recipes/``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from naspipe.config.definition import DATA_SIZES, MOMENTUM, Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.settings import declared
from naspipe.config.text import did_you_mean

FOLDER = Path(__file__).parents[1] / "recipes"

_MOST_BYTES = 1 << 20

_TABLES = ("optimizer", "rule", "data", "momentum")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """The content of a recipe file."""

    where: str = ""
    sampler: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Everything except the sampler, by the keys of ``--set``."""

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings with the values of the recipe.

        A recipe that names an optimizer replaces all of its options in the settings.
        """
        if "optimizer" in self.values:
            settings = replace(settings, recipe=replace(settings.recipe, optimizer_options={}))
        texts = []
        for key, value in self.values.items():
            is_text = isinstance(value, str) and not key.startswith("optimizer.")
            texts.append(f"{key}={value if is_text else json.dumps(value, default=str)}")
        try:
            return apply_settings(settings, texts)
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {str(error).removeprefix('--set ')}") from None


NO_RECIPE = RecipeFile()


def recipe_names() -> list[str]:
    """Return the names of the recipes that are part of naspipe."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_recipe(name: str | Path) -> RecipeFile:
    """Read one of naspipe's recipes by name, or a file by its path, which ends in ``.toml``."""
    text = str(name)
    path = Path(text)
    if path.suffix != ".toml" and len(path.parts) <= 1:
        if text not in recipe_names():
            hint = did_you_mean(text, recipe_names())
            raise ConfigError(
                f"unknown recipe {text!r:.80}{hint}: expected {', '.join(recipe_names())}, or a "
                f"file, as in mine.toml"
            )
        path = FOLDER / f"{text}.toml"
    return _parsed(_read(path, text), f"recipe {text}")


def _read(path: Path, name: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError("more than 1 MiB")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"recipe {name}: expected a TOML file, found {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"recipe {name}: expected a TOML file, found {problem:.200}") from error


def _parsed(tree: Mapping[str, Any], where: str) -> RecipeFile:
    values = dict(_flat(tree, where))
    sampler = values.pop("sampler", None)
    if not isinstance(sampler, str | None):
        raise ConfigError(f"{where}: sampler: expected a text, found {sampler!r:.80}")
    for key, value in values.items():
        _check(key, value, where)
    found = RecipeFile(where=where, sampler=sampler, values=values)
    found.applied_to(Settings())
    return found


def _flat(tree: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and key in _TABLES:
            for option, inner in value.items():
                is_name = (key, option) == ("optimizer", "name")
                yield (key if is_name else f"{key}.{option}"), inner
        elif isinstance(value, Mapping):
            raise ConfigError(f"{where}: unknown table [{key}]; expected [{'], ['.join(_TABLES)}]")
        else:
            yield key, value


def _check(key: str, value: Any, where: str) -> None:
    """Check the kind of a value, which text on the command line does not have."""
    others = {**DATA_SIZES, **MOMENTUM}
    known = {**declared(Recipe), **declared(Execution), **others}.get(key)
    if key in declared(Execution) and known and not known.is_of_recipes:
        raise ConfigError(
            f"{where}: {key} says how a run is carried out, which is no part of a recipe; give it "
            f"on the command line, as in --set {key}={value!s:.40}"
        )
    if known is not None:
        is_number_as_text = key == "validate_subnets" and type(value) is int
        is_good, expected = known.is_of_kind(value) or is_number_as_text, known.kind_name
    elif key.startswith("rule."):
        is_good, expected = isinstance(value, str), "a text"
    else:
        is_good = not key.startswith("optimizer.") or _is_plain(value)
        expected = "a plain value"
    if not is_good:
        raise ConfigError(f"{where}: {key}: expected {expected}, found {value!r:.80}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
