"""Train nlp.c3 tiny on the real data and write the loss per token, in means of 25 steps."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.store.run_directory import RunDirectory  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402


def main() -> int:
    """Run `naspipe train`, then summarise its losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="nlp.c3")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--stages", default="2")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/loss_curve/result.json")
    arguments = parser.parse_args()
    tiny_workload(arguments.space)  # its data is prepared
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable, "-m", "naspipe", "train", arguments.space, "--steps",
            str(arguments.steps), "--stages", arguments.stages, "--seed", "1", "--run-dir",
            f"{scratch}/run",
        ]  # fmt: skip
        if status := subprocess.call(command, stdout=subprocess.DEVNULL):
            return status
        directory = RunDirectory(f"{scratch}/run")
        losses = [loss.value for loss in directory.read_losses()]
        definition = directory.read_manifest()["definition"]
    means = [statistics.mean(losses[at : at + 25]) for at in range(0, len(losses), 25)]
    print(f"{arguments.space}, loss per token, first step {losses[0]:.3f}, means of 25 steps:")
    print("  ".join(f"{mean:.3f}" for mean in means))
    result = {"definition": definition, "first": losses[0], "means_of_25": means, "losses": losses}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
