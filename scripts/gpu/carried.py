"""The packages that the check needs, and wheels for a machine that lacks some. Needs no torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

NEEDED = {
    "torch": "torch", "numpy": "numpy", "msgpack": "msgpack", "zmq": "pyzmq",
    "safetensors": "safetensors", "rich": "rich", "markdown_it": "markdown-it-py",
    "mdurl": "mdurl", "pygments": "Pygments", "pytest": "pytest", "iniconfig": "iniconfig",
    "pluggy": "pluggy", "packaging": "packaging", "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis", "sortedcontainers": "sortedcontainers", "isal": "isal",
}  # fmt: skip
"""Packages by the name they are imported by, with all that they need in turn but torch's own."""

OF_THE_MACHINE = ("torch", "numpy")
"""Too large to carry, or made for the machine."""

_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 17, 12, 5)]


def missing() -> list[str]:
    """Packages that this python lacks."""
    return [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]


def make_wheels(version: str, wheels: Path, constraints: Path) -> int:
    """Fetch wheels for a version of Python on Linux (x86-64) from the registry; pip's status."""
    names = [name for name in NEEDED.values() if name not in OF_THE_MACHINE]
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    status = subprocess.call([
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--python-version", version, *platforms, "-c", str(constraints), "-d", str(wheels), *names,
    ])  # fmt: skip
    found = sorted(path.name for path in wheels.glob("*.whl"))
    print(f"gpu_check: {wheels}/ has {len(found)} wheels of {len(names)} packages: "
          f"{', '.join(found)}")  # fmt: skip
    return status


def installed(names: list[str], wheels: Path, site: Path) -> bool:
    """Whether wheels of all these packages were there, and are in a folder for imports now."""
    print(f"gpu_check: this python lacks {', '.join(names)}; looking in {wheels}/", flush=True)
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
        "--find-links", str(wheels), "--target", str(site), *names,
    ]  # fmt: skip
    if subprocess.call(command) == 0:
        return True
    said = f"expected wheels of {', '.join(names)} in {wheels}/, found none that fit"
    print(f"gpu_check: {said}; put them there or use a python that has them", file=sys.stderr)
    return False


def environment(root: Path, wheels: Path, scratch: Path) -> dict[str, str] | None:
    """The parts' environment; None when packages are missing that no wheel brings.

    What they leave, when one is cut off too, is below ``scratch``.
    """
    lacking, site = missing(), scratch / "site"
    if lacking and not installed(lacking, wheels, site):
        return None
    given = os.environ.get("PYTHONPATH")
    paths = [*([str(site)] if lacking else []), str(root), *([given] if given else [])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": str(scratch),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
