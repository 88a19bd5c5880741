"""Subnet lists in files: JSON lines, each a list of choices or an NNI sample."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.text import parse_json

ChoicesOf = Callable[[Mapping[str, Any]], tuple[int, ...]]
"""Returns the choices of an NNI sample, given the value of every label."""


def write_stream(path: Path, subnets: Iterable[Sequence[int]]) -> None:
    """Write a subnet list for :func:`read_stream` atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(list(map(int, subnet))) + "\n" for subnet in subnets)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_stream(
    path: Path,
    candidate_counts: Sequence[int] | None = None,
    choices_of: ChoicesOf | None = None,
) -> list[tuple[int, ...]]:
    """Read a subnet list; blank lines are skipped.

    A line is a list of choices or, if ``choices_of`` is given, an NNI sample: an object with the
    value of every label.

    Raises:
        ConfigError: if a line is neither, or has a choice that ``candidate_counts`` does not allow
            or an invalid value of a label; the message names file, line, and block or label.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: expected a subnet list, found {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected a subnet list, found a binary file") from error
    subnets = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}:{number}"
            subnet = _parse(line, where, choices_of)
            if candidate_counts is not None:
                _check(subnet, candidate_counts, where)
            subnets.append(subnet)
    return subnets


def _parse(line: str, where: str, choices_of: ChoicesOf | None) -> tuple[int, ...]:
    try:
        choices: Any = parse_json(line)
    except ValueError:
        choices = None
    if isinstance(choices, dict) and choices_of is not None:
        try:
            return choices_of(choices)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    if isinstance(choices, dict):
        raise ConfigError(
            f"{where}: expected one choice per choice block, as in [0, 2, 1], found a sample with "
            f"labels, and the space has none"
        )
    if not isinstance(choices, list) or any(type(choice) is not int for choice in choices):
        raise ConfigError(
            f"{where}: expected one choice per choice block, as in [0, 2, 1], found {line!r:.80}"
        )
    return tuple(choices)


def _check(subnet: tuple[int, ...], candidate_counts: Sequence[int], where: str) -> None:
    if len(subnet) != len(candidate_counts):
        raise ConfigError(
            f"{where}: expected {len(candidate_counts)} choices, one per choice block, "
            f"found {len(subnet)}"
        )
    for block, (choice, count) in enumerate(zip(subnet, candidate_counts, strict=True)):
        if not 0 <= choice < count:
            raise ConfigError(
                f"{where}, choice block {block}: expected a choice from 0 to {count - 1}, "
                f"found {choice}"
            )
