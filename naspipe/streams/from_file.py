"""Subnet lists in files: JSON lines, one list of choices a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from naspipe.core.errors import ConfigError
from naspipe.core.json_text import parse_json


class FileSampler:
    """The subnets of a file, checked against the space when it is made.

    Raises:
        ConfigError: naming file, line and block of what does not fit.
    """

    def __init__(self, path: Path, candidate_counts: Sequence[int]) -> None:
        self.path = path
        self._subnets = read_stream(path, candidate_counts)
        self._left = iter(self._subnets)

    def __len__(self) -> int:
        return len(self._subnets)

    def draw(self) -> tuple[int, ...]:
        """The next subnet of the file.

        Raises:
            ConfigError: when the file has no more.
        """
        for subnet in self._left:
            return subnet
        raise ConfigError(f"{self.path} holds {len(self)} subnets, and one more was asked for")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, ...]:
        return next(self._left)


def write_stream(path: Path, subnets: Iterable[Sequence[int]]) -> None:
    """Write a subnet list, whole or not at all; what :func:`read_stream` reads."""
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


def read_stream(path: Path, candidate_counts: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Read a subnet list; blank lines are skipped.

    Raises:
        ConfigError: naming file and line of what is not a list of whole numbers, or
            also the block of a choice that ``candidate_counts`` does not allow.
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
            subnet = _parse(line, where)
            if candidate_counts is not None:
                _check(subnet, candidate_counts, where)
            subnets.append(subnet)
    return subnets


def _parse(line: str, where: str) -> tuple[int, ...]:
    try:
        choices: Any = parse_json(line)
    except ValueError:
        choices = None
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
