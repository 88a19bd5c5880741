"""What the scripts about search share: runs that are made once, lists of subnets, ranks."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.random import RandomState

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.api.search import judge_subnets  # noqa: E402
from naspipe.api.search_record import SilentSearchObserver  # noqa: E402
from naspipe.api.training import Training  # noqa: E402
from naspipe.config.definition import Execution  # noqa: E402
from naspipe.config.space import Space  # noqa: E402
from naspipe.inputs.held_out import find_held_out  # noqa: E402
from naspipe.inputs.run import Run  # noqa: E402
from naspipe.jobs.workload import Batches, Workload  # noqa: E402
from naspipe.search.search_directory import (  # noqa: E402
    Search,
    SearchDefinition,
    SearchDirectory,
    search_path,
)
from naspipe.streams.stream_file import write_stream  # noqa: E402
from naspipe.wire.reports import Observer  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402


class Bench:
    """One space and its data; every step is left in a directory, and not repeated.

    Args:
        space: by name, at scale tiny.
        sizes: ``batch_size`` or ``max_tokens``.
        work: where runs are kept.
        recipe: settings of the recipe, in place of the space's.
    """

    def __init__(
        self, space: str, sizes: Mapping[str, int], work: Path, recipe: Mapping[str, Any]
    ) -> None:
        self.named: Workload = tiny_workload(space, sizes)
        self.work = work
        self._recipe = dict(recipe)
        self._sizes = sizes
        self._data_name = str(self.named.data.record["name"])  # type: ignore[attr-defined]
        work.mkdir(parents=True, exist_ok=True)

    @property
    def space(self) -> Space:
        """The space."""
        return self.named.space

    def held_out(self, split: str) -> Batches:
        """Batches that nothing is trained on."""
        name = self.space.name
        return find_held_out(name, "tiny", self._data_name, split=split, sizes=self._sizes)

    def train(
        self, name: str, steps: int, sampler: str, policy: str = "csp", stages: int = 1,
        seed: int = 1,
    ) -> Run:  # fmt: skip
        """A run of that name."""
        path = self.work / name
        run = Run(self.space, path)
        if path.is_dir():
            if run.manifest.get("status") == "complete":
                return run
            shutil.rmtree(path)  # what was interrupted begins anew
        named = self.named
        recipe = replace(named.recipe, **self._recipe)
        workload = named.redefined(
            recipe=recipe, steps=steps, seed=seed,
            sampler=sampler, policy=policy, bulk=stages if policy == "bsp" else 0,
        )  # fmt: skip
        source = {"space": self.space.name, "scale": "tiny", "data": None, "sizes": self._sizes}
        before = time.monotonic()
        Training(
            workloads=[workload], execution=Execution(stages=stages, order="paper"), path=path,
            observer=Observer(), sources=[source],
        ).run()  # fmt: skip
        print(f"{name}: {steps} steps in {time.monotonic() - before:.0f} s", flush=True)
        return run

    def train_alone(self, name: str, choices: Sequence[int], steps: int) -> Run:
        """A subnet alone, from its first weights."""
        stream = self.work / f"{name}.jsonl"
        write_stream(stream, [tuple(choices)] * steps)
        return self.train(name, steps, f"file:{stream}")

    def judge(self, run: Run, name: str, split: str, **definition: Any) -> Search:
        """A search of a run, of that name."""
        directory = SearchDirectory(search_path(run.directory.path, name))
        if directory.manifest.is_file():
            if (found := directory.read()).manifest["status"] == "complete":
                return found
            shutil.rmtree(directory.path)  # what was interrupted begins anew
        before = time.monotonic()
        found = judge_subnets(
            run,
            self.named.data,
            self.held_out(split),
            self.named.loss,
            SearchDefinition(**definition),
            Execution(),
            name=name,
            observer=SilentSearchObserver(),
        )
        count, seconds = len(found.candidates), time.monotonic() - before
        print(f"{run.directory.path.name}: {count} subnets judged in {seconds:.0f} s", flush=True)
        return found

    def judge_listed(
        self, run: Run, name: str, split: str, listed: Sequence[Sequence[int]], **options: Any
    ) -> Search:
        """These subnets, with a run's weights."""
        path = self.work / f"listed-{len(listed)}-{name}-{run.directory.path.name}.jsonl"
        write_stream(path, listed)
        strategy = f"file:{path}"
        return self.judge(run, name, split, strategy=strategy, budget=len(listed), **options)


def random_subnets(space: Space, count: int, seed: int) -> list[tuple[int, ...]]:
    """Subnets drawn uniformly."""
    draws = RandomState(seed)
    counts = space.candidate_counts
    return [tuple(int(draws.randint(each)) for each in counts) for _ in range(count)]


def command(script: str) -> str:
    """How this was started, without the place where runs are kept."""
    words = sys.argv[1:]
    if "--work" in words:
        place = words.index("--work")
        words = words[:place] + words[place + 2 :]
    return " ".join([script, *words])


def keep(name: str, result: Mapping[str, Any]) -> Path:
    """Write figures to artifacts/search/NAME.json."""
    path = ROOT / "artifacts" / "search" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return path


def draw(name: str, paint: Callable[[Any], None], columns: int) -> Path:
    """A picture beside the figures: ``paint`` is given as many axes as columns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(4.2 * columns, 3.6), squeeze=False)
    paint(axes[0])
    figure.tight_layout()
    path = ROOT / "artifacts" / "search" / f"{name}.png"
    figure.savefig(path, dpi=110)
    return path
