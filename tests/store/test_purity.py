"""The pure packages work where torch, zmq and rich cannot be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["naspipe.store", "naspipe.streams"])
def test_a_pure_package_imports_without_torch(package: str) -> None:
    code = (
        "import sys, importlib, pkgutil\n"
        "sys.modules.update(dict.fromkeys(('torch', 'zmq', 'rich')))\n"
        f"package = importlib.import_module({package!r})\n"
        "for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
