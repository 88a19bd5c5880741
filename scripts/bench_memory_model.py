"""The largest batch that fits a device, for NASPipe and its baselines, as Table 2's batch column.

Sizes are those of this project's spaces at paper scale, from shapes alone. Plain SGD; 8 stages, 8
subnets under way; a sample is a sentence of 64 tokens, or an image of 224 x 224.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import search_spaces  # noqa: E402
from naspipe.api.simulate import DATA_INFO  # noqa: E402
from naspipe.config.definition import Definition, Recipe  # noqa: E402
from naspipe.jobs.workload import Workload  # noqa: E402
from scripts.paper.footprint import SYSTEMS, largest_batch, stage_loads  # noqa: E402
from scripts.paper.measured_footprints import measure_footprints  # noqa: E402

DEVICE_BYTES = 11 * 2**30
RESERVED_BYTES = 600 * 2**20
"""The driver's context and the libraries' workspaces: assumed."""
STAGES = 8
TOKENS = 64


def text(count: int) -> dict[str, torch.Tensor]:
    """Token numbers of so many sentence pairs."""
    shape = (count, TOKENS)
    names = ("source", "previous", "target")
    return {name: torch.empty(shape, dtype=torch.int64, device="meta") for name in names}


def images(count: int) -> dict[str, torch.Tensor]:
    """So many images and their classes."""
    return {
        "input": torch.empty(count, 3, 224, 224, device="meta"),
        "target": torch.empty(count, dtype=torch.int64, device="meta"),
    }


def measure(name: str) -> dict[str, Any]:
    """Every system's largest batch."""
    definition = Definition(space=name, steps=1, recipe=Recipe(optimizer="SGD"))
    workload = Workload(
        space=search_spaces.build(name, "paper", DATA_INFO),
        data=lambda seed, sequence_id: {},
        loss=search_spaces.defaults(name, "paper").loss(),
        definition=definition,
    )
    table = measure_footprints(workload, text if name.startswith("nlp") else images)
    budget_bytes = DEVICE_BYTES - RESERVED_BYTES
    rows: dict[str, Any] = {}
    for system in SYSTEMS:
        batch = largest_batch(
            table, system, num_stages=STAGES, in_flight=STAGES, budget_bytes=budget_bytes,
            sizes=range(4, 1025, 4),
        )  # fmt: skip
        loads = stage_loads(table, system, STAGES, STAGES, batch)
        rows[system.name] = {
            "batch": batch,
            "layer_gigabytes": [round(load.fixed_bytes / 1e9, 3) for load in loads],
        }
    supernet_bytes = sum(map(table.supernet_bytes, range(len(table.twins))))
    return {"parameters": supernet_bytes // 4, "systems": rows}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", nargs="+", default=list(search_spaces.names()))
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/memory_model/batch.json")
    arguments = parser.parse_args()
    found = {}
    for name in arguments.spaces:
        found[name] = measure(name)
        batches = {system: row["batch"] for system, row in found[name]["systems"].items()}
        print(f"{name}: {found[name]['parameters'] / 1e9:.1f}B parameters, batch {batches}")
    settings = {"device_bytes": DEVICE_BYTES, "reserved_bytes": RESERVED_BYTES, "stages": STAGES}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**settings, "spaces": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
