"""Functions have one name, whether their module was started or imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from functools import partial
from naspipe.config.settings import name_of
from naspipe.config.user_code import full_name

def collate(items): ...
class Lion: ...

said = [full_name(collate), full_name(Lion()), name_of(Lion), name_of(partial(collate, 1))]
if __name__ == "__main__":
    print(said)
"""


@pytest.mark.parametrize(
    "words", [["port.py"], ["-m", "port"], ["-c", "import port; print(port.said)"]]
)
def test_a_script_that_is_started_or_imported(tmp_path, words):
    (tmp_path / "port.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = ["port.collate", "port.Lion", "port:Lion", "port:collate(1)"]
    assert done.stdout.strip() == str(said)


def test_at_a_prompt():
    text = SCRIPT.replace("__name__ == ", "True or ")
    done = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True)
    assert "__main__.collate" in done.stdout, done.stderr
