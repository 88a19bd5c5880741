"""What the tests of bad input share: command lines, and what a refusal must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from naspipe.cli.main import main

MODULE = "bad_input_space"
MINE = (f"{MODULE}:space", "--data", f"{MODULE}:data", "--steps", "3")
DIGITS = ("cv.c3", "--data", "digits", "--steps", "3")
LONG = "9" * 5000
"""More digits than Python turns into a number."""


class Refusal:
    """Runs ``naspipe train`` and checks that it refuses as it should."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.capsys = place, capsys

    def __call__(self, *words: str, run_dir: str = "run") -> str:
        before = self.tree()
        try:
            status = main(["train", *words, "--run-dir", run_dir])
        except SystemExit as error:
            status = error.code
        output = self.capsys.readouterr()
        assert status == 2, output.err
        assert output.err.count("\n") == 1 and output.err.startswith("naspipe: "), output.err
        after = self.tree()
        assert output.out == ""
        assert after == before, f"left behind: {sorted(after.keys() ^ before.keys())}"
        return output.err

    def tree(self) -> dict[str, bytes]:
        """Every path of the working directory, with its bytes."""
        return {
            path.relative_to(self.place).as_posix(): b"" if path.is_dir() else path.read_bytes()
            for path in sorted(self.place.rglob("*"))
        }


def expect(line: str, *pieces: str) -> None:
    """Pieces of a message, each of which must be in it."""
    missing = [piece for piece in pieces if piece not in line]
    assert not missing, line
