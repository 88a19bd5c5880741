"""Train one supernet on several numbers of stages and compare the runs bit by bit.

Each run is a `naspipe train`; the table and the exit status are `naspipe compare`'s.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

from naspipe.cli.compare import compare_groups
from naspipe.cli.main import main as naspipe
from naspipe.config.errors import ConfigError


def parse() -> tuple[argparse.Namespace, list[str]]:
    """The options of this script, and those that `naspipe train` is to have."""
    parser = argparse.ArgumentParser(
        prog="run_compare.sh",
        description=__doc__,
        epilog="Further options go to `naspipe train`, for example --seed 1 or --set lr=0.01.",
    )
    parser.add_argument("--space", default="nlp.c0", help="default: nlp.c0, the paper's artifact")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--steps", default="16", help="default: 16; the paper's artifact has 500")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument(
        "--samplers", nargs="+", default=["uniform"], metavar="NAME", help="default: uniform"
    )
    parser.add_argument("--data", help="a data set instead of the space's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", action="store_true", help="keep equal checkpoints too")
    parser.add_argument("--run-dir", type=Path, help="default: runs/compare-TIME")
    return parser.parse_known_args()


def main() -> int:
    """Prepare the data, train every run, compare."""
    arguments, rest = parse()
    import search_spaces

    try:
        data = arguments.data or search_spaces.defaults(arguments.space, arguments.scale).data
    except ConfigError as error:
        print(f"naspipe: {error}", file=sys.stderr)
        return 2
    if status := naspipe(["data", "prepare", data]):
        return status
    directory = arguments.run_dir or Path("runs") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
    groups = []
    for sampler in arguments.samplers:
        group = [str(directory / f"{sampler.replace(':', '-')}-{n}") for n in arguments.stages]
        groups.append(group)
        for stages, path in zip(arguments.stages, group, strict=True):
            command = [
                "train", arguments.space, "--scale", arguments.scale, "--data", data,
                "--steps", arguments.steps, "--stages", str(stages), "--sampler", sampler,
                "--device", arguments.device, "--digests", "--run-dir", path, *rest,
            ]  # fmt: skip
            with redirect_stdout(io.StringIO()):  # one process: each would import torch anew
                status = naspipe(command)
            if status:
                return status
    status = compare_groups(groups)
    if status == 0 and not arguments.keep:
        for group in groups:
            for path in group[1:]:
                shutil.rmtree(Path(path) / "checkpoints")
        print("removed the checkpoints of runs that equal the first (--keep keeps them)")
    return status


if __name__ == "__main__":
    sys.exit(main())
