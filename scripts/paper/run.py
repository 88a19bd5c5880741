"""Make the tables and figures of the paper's evaluation again, as far as this machine allows.

Each is written to artifacts/EXPERIMENT/ as result.json, result.csv and result.png, with the
paper's value beside ours, and summed up in artifacts/README.md.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from naspipe.config.errors import NaspipeError  # noqa: E402
from scripts.paper.common import Options, keep, show  # noqa: E402
from scripts.paper.summary import write_summary  # noqa: E402

EXPERIMENTS = (
    "table2", "table3", "table4", "table5", "figure4", "figure5", "figure6", "figure7",
    "throughput", "table6", "figure8", "figure14", "tspipe", "pipebd", "edl",
)  # fmt: skip
NEEDS_DATA = {
    "table3": ("en-de-2k", "fashion-mnist"), "table5": ("en-de-2k", "fashion-mnist"),
    "figure4": ("en-de-2k", "fashion-mnist"), "figure6": ("en-de-2k",),
    "throughput": ("en-de-2k",),
}  # fmt: skip


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="+", choices=(*EXPERIMENTS, "all"), metavar="NAME",
                        help=f"{', '.join(EXPERIMENTS)}, or all")  # fmt: skip
    parser.add_argument("--steps", type=int, help="subnets per run; each has its own default")
    parser.add_argument("--seeds", type=int, default=2, help="simulated streams (default: 2)")
    parser.add_argument("--spaces", nargs="+", metavar="SPACE")
    parser.add_argument("--stages", nargs="+", type=int, metavar="N")
    parser.add_argument("--scale", default="tiny", help="of real runs (default: tiny)")
    parser.add_argument("--repetitions", type=int, default=3, help="of real timings (default: 3)")
    parser.add_argument("--simulated-only", action="store_true", help="leave real runs out where "
                        "an experiment has both")  # fmt: skip
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts", metavar="DIR")
    return parser.parse_args(words)


def options_of(arguments: argparse.Namespace) -> Options:
    """What experiments see of the command line."""
    return Options(
        steps=arguments.steps,
        seeds=arguments.seeds,
        spaces=tuple(arguments.spaces) if arguments.spaces else None,
        stages=tuple(arguments.stages) if arguments.stages else None,
        scale=arguments.scale,
        repetitions=arguments.repetitions,
        is_real=not arguments.simulated_only,
    )


def prepare(names: list[str], options: Options) -> int:
    """Prepare what data the experiments need; returns the exit status."""
    is_asked = {"figure6", "throughput"} if options.is_real else set()
    needed = {
        data
        for name in names
        if name not in ("figure6", "throughput") or name in is_asked
        for data in NEEDS_DATA.get(name, ())
    }
    for data in sorted(needed):
        command = [sys.executable, "-m", "naspipe", "data", "prepare", data]
        if status := subprocess.call(command, stdout=sys.stderr):
            return status
    return 0


def main() -> int:
    """Run what was asked for; the exit status is 1 where something does not hold that must."""
    words = sys.argv[1:]
    arguments = parse(words)
    names = list(dict.fromkeys(arguments.experiments))
    names = list(EXPERIMENTS) if "all" in names else names
    options = options_of(arguments)
    if status := prepare(names, options):
        return status
    failed = []
    for name in names:
        start = time.monotonic()
        module: Any = importlib.import_module(f"scripts.paper.{name}")
        try:
            result = module.run(options)
        except NaspipeError as error:
            print(f"naspipe: {name}: {error}", file=sys.stderr)
            return 2
        rest = [word for word in words if word not in (*EXPERIMENTS, "all")]
        command = shlex.join(["scripts/paper/run.py", name, *rest])
        keep(result, command, arguments.output / name, module.draw)
        show(result)
        print(f"{name}: {time.monotonic() - start:.0f} s, {arguments.output / name}/\n", flush=True)
        if not result.holds:
            failed.append(name)
    write_summary(arguments.output)
    if failed:
        print(f"does not hold: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
