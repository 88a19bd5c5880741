"""What the set-up that every script begins with leaves in the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_what_one_process_compiles_is_kept_for_the_next():
    if not (ROOT / ".venv/naspipe-setup").exists():
        pytest.skip("expected an environment that is set up, found none")
    ask = 'source scripts/setup.sh run; "$PYTHON" -c "import sys; print(sys.dont_write_bytecode)"'
    environment = {k: v for k, v in os.environ.items() if k != "NASPIPE_PYTHON"}
    said = subprocess.run(
        ["bash", "-c", ask], cwd=ROOT, env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    assert said.stdout == "False\n"
