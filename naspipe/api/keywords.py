"""Settings in Python: parse keywords and mappings of settings by their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from textwrap import fill
from typing import Any, NamedTuple, TypeVar

from naspipe.config.definition import DATA_SIZES, MOMENTUM
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Every, Exact, Frozen, Lag, Rule, parse_rule
from naspipe.config.settings import declared, groups
from naspipe.config.text import did_you_mean

Call = TypeVar("Call", bound=Callable[..., Any])

KEYWORDS = "keywords"
"""The place that messages name for settings that are not in a mapping."""

FEW = 6
"""Messages list all allowed keys up to this number of keys."""

_ELSEWHERE = {
    **dict.fromkeys(DATA_SIZES, "where the data are made, as in open_data(..., batch_size=64)"),
    **dict.fromkeys(MOMENTUM, "in the teacher, as in teacher=naspipe.Momentum(0.99)"),
    **{
        f"max_{cost}": f"in limits, as in limits={{'{cost}': ...}}"
        for cost in ("flops", "params", "latency_ms")
    },
    "loss_fields": "in the training alone, whose run has them",
}
"""Settings of the command line that belong to objects in Python."""

_OF_DATA = "in the data, as in npp.from_dataset(dataset, {}=...)"
_MEANT = {
    **{
        key: _OF_DATA.format(own)
        for key, own in (
            ("batch_size", "batch_size"), ("shuffle", "shuffle"), ("drop_last", "drop_last"),
            ("collate_fn", "collate_fn"), ("num_workers", "workers"), ("workers", "workers"),
        )
    },
    **dict.fromkeys(
        ("epochs", "num_epochs", "max_epochs"),
        "in optimizer steps, as in steps=epochs * len(dataset) // batch_size",
    ),
    **dict.fromkeys(("learning_rate", "max_lr"), "as lr=..."),
    **dict.fromkeys(("amp", "autocast", "use_amp", "bf16", "fp16"), "as precision='bf16'"),
    **dict.fromkeys(
        ("accumulate", "accumulate_grad_batches", "gradient_accumulation_steps"),
        "as passes='accumulate:N'",
    ),
    **dict.fromkeys(
        ("early_stopping", "patience", "callbacks"),
        "in an observer's on_validation, as docs/porting.md shows",
    ),
    "scheduler": "as schedule='cosine', or as lr=FUNCTION, which returns the rate of a step",
}  # fmt: skip
"""Names of settings in other trainers, and their equivalents here."""

_MEANT_IN_SEARCH = {
    **dict.fromkeys(
        ("steps", "epochs", "num_epochs", "trials"), "as budget=..., how many subnets are judged"
    ),
    "batch_size": _MEANT["batch_size"],
}


class Stated(NamedTuple):
    """Settings that a caller gave, grouped by the object that they configure."""

    recipe: dict[str, Any]
    options: dict[str, Any]
    """Values of ``optimizer.OPTION`` by ``OPTION``."""
    rules: dict[str, Rule]
    execution: dict[str, Any]

    @classmethod
    def of(cls, call: Callable[..., Any], **said: Mapping[str, Any] | None) -> Stated:
        """Group settings from keywords and mappings, each passed by the name of its argument.

        Values of None are ignored.

        Raises:
            ConfigError: for an unknown key, or one that is given twice with different values.
        """
        of_recipe, of_execution = declared(Recipe), {*declared(Execution), *groups(Execution)}
        of_optimizer = ["optimizer_options", "parameter_groups"]
        given = gathered(call, [*of_recipe, *of_optimizer, *of_execution], **said)
        found = cls({}, {}, {}, {})
        for key, value in given.items():
            table, _, inner = key.partition(".")
            if table == "optimizer" and inner:
                found.options[inner] = value
            elif table == "rule":
                rule = parse_rule(value) if isinstance(value, str) else value
                if not isinstance(rule, Exact | Frozen | Lag | Every):
                    raise ConfigError(
                        f"{key}: expected a rule, as in naspipe.Lag(2), found {value!r:.80}"
                    )
                found.rules[inner] = rule
            elif key in of_execution:
                found.execution[key] = _plain(Execution, key, value)
            else:
                found.recipe[key] = _plain(Recipe, key, value)
        return found

    @property
    def defining(self) -> dict[str, Any]:
        """All settings except those of the execution, by their keys."""
        rules = {f"rule.{name}": rule for name, rule in self.rules.items()}
        return {**self.recipe, **rules, **{f"optimizer.{k}": v for k, v in self.options.items()}}


def tells_settings(*keys: str) -> Callable[[Call], Call]:
    """Append the first sentence of the help of some settings to the docstring of a function."""

    def told(call: Call) -> Call:
        known = {**declared(Recipe), **declared(Execution)}
        said = (f"{key}: {known[key].help.partition('. ')[0].rstrip('.')}." for key in keys)
        lines = [
            fill(each, 96, initial_indent=" " * 8, subsequent_indent=" " * 12) for each in said
        ]
        call.__doc__ = "\n".join((f"{call.__doc__}\n    Common settings:", *lines, ""))
        return call

    return told


def gathered(
    call: Callable[..., Any], known: Iterable[str], **said: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Merge keywords and mappings of settings.

    Args:
        call: the function that takes the keywords.
        known: allowed keys, in addition to ``optimizer.OPTION`` and ``rule.LAYER``.
        said: ``keywords``, and mappings by the names of their arguments.

    Raises:
        ConfigError: if an argument is not a mapping, or a key is unknown or given with two values.
    """
    known = list(known)
    found: dict[str, Any] = {}
    places: dict[str, str] = {}
    parameters = signature(call).parameters.values()
    arguments = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    for where, mapping in said.items():
        if not isinstance(mapping, Mapping | None):
            raise ConfigError(
                f"{where}: expected a mapping of settings, as in {{'window': 8}}, found "
                f"{type(mapping).__name__}"
            )
        for key, value in (mapping or {}).items():
            if value is None:
                continue
            table, _, inner = str(key).partition(".")
            is_open = table in ("optimizer", "rule") and bool(inner) and "optimizer" in known
            if key not in known and not is_open:
                raise _unknown(key, where, call.__name__, arguments, known)
            if key in found and found[key] != value:
                raise ConfigError(
                    f"{key}: expected one value, found {found[key]!r:.40} in {places[key]} and "
                    f"{value!r:.40} in {where}; leave one out"
                )
            found[key], places[key] = value, where
    return found


def _unknown(
    key: object, where: str, call: str, arguments: Sequence[str], known: Iterable[str]
) -> ConfigError:
    text = f"{key!s:.80}"
    if text in arguments:
        return ConfigError(
            f"{text}: expected it as an argument, naspipe.{call}(..., {text}=...), found it in "
            f"{where}"
        )
    if text in _ELSEWHERE:
        return ConfigError(f"{text}: expected it {_ELSEWHERE[text]}, found it in {where}")
    meant = _MEANT if "steps" in arguments else _MEANT_IN_SEARCH
    if text in meant:
        return ConfigError(f"{text}: expected it {meant[text]}, found it in {where}")
    from naspipe.worker.layers.optimizers import PER_LAYER, options_of

    is_option = any(text in options_of(name) for name in PER_LAYER)
    if is_option and "optimizer_options" in {*arguments, *known}:
        return ConfigError(
            f"{text}: expected it in optimizer_options={{{text!r}: ...}}, found it in {where}"
        )
    own = arguments if where == KEYWORDS else ()
    hint = did_you_mean(text, [*own, *known])
    also = f"an argument of naspipe.{call} or " if where == KEYWORDS else ""
    few = ", ".join(known) if where != KEYWORDS and len({*known}) <= FEW else ""
    expected = few or f"{also}a setting that it takes, see docs/settings.md"
    return ConfigError(f"{text}: unknown key in {where}{hint}; expected {expected}")


def _plain(node: type, key: str, value: Any) -> Any:
    """Convert a whole number to text for a text setting; ``passes=N`` means N micro-batches."""
    setting = declared(node).get(key)
    if setting is None or setting.kind is not str or type(value) is not int:
        return value
    if key == "passes":
        return "one" if value == 1 else f"accumulate:{value}"
    return str(value)
