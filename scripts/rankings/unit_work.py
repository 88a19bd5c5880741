"""How a unit is carried out: supernets by naspipe, networks alone by the plain loop."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.rankings import unit_keys
from scripts.rankings.cell_space import ROOT, Architecture, Problem, Setting, npp, setting, torch
from scripts.rankings.kept_units import KeptUnits
from scripts.rankings.plain_search import METHODS
from scripts.rankings.plain_training import forward, train_plainly
from scripts.rankings.unit_keys import Unit, key_of

from naspipe.config.errors import NotFiniteError  # isort: skip
from naspipe.machine.determinism import describe_environment  # isort: skip
from naspipe.streams.stream_file import write_stream  # isort: skip

POINTS = 200
"""Of a curve of losses."""


class Watch:
    """Seconds by the clock and of this process's own work, which a busy machine changes less."""

    def __init__(self) -> None:
        self._began, self._work = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        """Since it was made."""
        seconds, work = time.monotonic() - self._began, time.process_time() - self._work
        return {"seconds": round(seconds, 2), "work_seconds": round(work, 2)}


class Worker:
    """Does units and keeps their results; asks for what is kept already first.

    Args:
        kept: where results are kept.
        work: where runs are, which may be deleted when nobody is at work.
    """

    def __init__(self, kept: KeptUnits, work: Path) -> None:
        self.kept = kept
        self.work = work
        torch.set_num_threads(1)

    def alone(self, unit: Unit) -> dict[str, Any]:
        """What a network reaches alone, on both halves of the held-out images."""
        if (found := self.kept.find(unit)) is not None:
            return found
        watch, own = Watch(), setting(Problem(**unit["problem"]))
        chain = own.space.chain(own.choices(tuple(unit["architecture"])))
        network, losses = train_plainly(unit, own, chain)
        result = {
            "valid": judged(network, own.valid),
            "test": judged(network, own.test),
            "params": sum(p.numel() for layer in network for p in layer.parameters()),
            "curve": curve(losses, 20),
        }
        self._keep(unit, result, watch)
        return result

    def supernet(self, unit: Unit, judgings: Sequence[Unit], searches: Sequence[Unit]) -> None:
        """A supernet, and all that is asked of it; its run is deleted then."""
        wanted = [each for each in (unit, *judgings, *searches) if self.kept.find(each) is None]
        if not wanted:
            return
        watch, own = Watch(), setting(Problem(**unit["problem"]))
        try:
            run = self._train(unit, own, own.ruled(rules_of(unit)), unit["variant"])
        except NotFiniteError as error:  # a result as well
            failed = {"failed": str(error).splitlines()[0][:300]}
            for each in wanted:
                self._keep(each, failed, watch)
            shutil.rmtree(self._path(unit), ignore_errors=True)
            return
        self._keep(unit, {"curve": curve(run.losses, POINTS)}, watch)
        for each in wanted:
            watch = Watch()
            if each["kind"] == "judging":
                self._keep(each, self._judge(each, run, own), watch)
            elif each["kind"] == "search":
                self._keep(each, self._search(each, run, own), watch)
        shutil.rmtree(run.path)

    def proxies(self, unit: Unit) -> dict[str, Any]:
        """Zero-cost scores, of the weights that a run of one step begins with."""
        if (kept := self.kept.find(unit)) is not None:
            return kept
        watch, own, path = Watch(), setting(Problem(**unit["problem"])), self._path(unit)
        shutil.rmtree(path, ignore_errors=True)
        run = npp.train(
            own.space, own.train, own.loss, steps=1, seed=unit["seed"], run_dir=path,
            progress=False, **unit_keys.RECIPE,
        )  # fmt: skip
        scores = self._scores(unit["architectures"], run, own, validate=1, score="synflow+naswot")
        result = {name: [getattr(each, name) for each in scores] for name in ("synflow", "naswot")}
        shutil.rmtree(path)
        self._keep(unit, result, watch)
        return result

    def found(self, unit: Unit) -> dict[str, Any]:
        """The networks that a search without a supernet tried, and the best of them."""
        if (kept := self.kept.find(unit)) is not None:
            return kept
        watch, problem = Watch(), Problem(**unit["problem"])

        def judge(architecture: Architecture) -> float:
            short = unit_keys.alone(problem, architecture, unit["short_steps"], unit["seed"])
            return float(self.alone(short)["valid"]["loss"])

        tried = METHODS[unit["method"]](judge, unit["budget"], unit["seed"])
        result = {
            "best": list(min(tried)[1]),
            "tried": [list(each) for _, each in tried],
            "loss": [loss for loss, _ in tried],
        }
        self._keep(unit, result, watch)
        return result

    def _train(self, unit: Unit, own: Setting, space: Any, variant: dict[str, Any]) -> Any:
        """A run, which goes on where it was stopped; of the baselines it begins anew."""
        said = {key: value for key, value in variant.items() if key != "rules"}
        path = self._path(unit)
        if variant.get("policy", "csp") == "csp":
            said |= {"resume": "if_exists", "checkpoint_every": 2000, "keep_checkpoints": 1}
        else:
            shutil.rmtree(path, ignore_errors=True)
        return npp.train(
            space, own.train, own.loss, steps=unit["steps"], seed=unit["seed"], run_dir=path,
            progress=False, access_log="off", **unit["recipe"], **said,
        )  # fmt: skip

    def _judge(self, unit: Unit, run: Any, own: Setting) -> dict[str, Any]:
        scores = self._scores(
            unit["architectures"], run, own,
            calibrate=unit["calibration"], validate=unit["validation"], ema=unit["ema"],
        )  # fmt: skip
        return {"loss": [each.loss for each in scores], "top1": [each.top1 for each in scores]}

    def _scores(
        self, architectures: Sequence[Architecture], run: Any, own: Setting, **how: Any
    ) -> list[Any]:
        """Of these architectures, in their order."""
        name = free_name(run)
        listed = run.path / f"{name}.jsonl"
        write_stream(listed, [own.choices(tuple(each)) for each in architectures])
        found = npp.search_subnets(
            run, own.train, own.loss, held_out=own.valid, strategy=f"file:{listed}",
            budget=len(architectures), name=name, progress=False, **how,
        )  # fmt: skip
        return [each.scores for each in found.candidates]

    def _search(self, unit: Unit, run: Any, own: Setting) -> dict[str, Any]:
        found = npp.search_subnets(
            run, own.train, own.loss, held_out=own.valid, strategy=unit["strategy"],
            budget=unit["budget"], seed=unit["seed"], score=unit["score"],
            calibrate=unit["calibration"], validate=unit["validation"], name=free_name(run),
            progress=False,
        )  # fmt: skip
        best = found.ranked()[:10]
        return {
            "best": [list(own.architecture(each.choices)) for each in best],
            "loss": [each.scores.loss for each in best],
            "judged": len({each.choices for each in found.candidates}),
        }

    def _path(self, unit: Unit) -> Path:
        self.work.mkdir(parents=True, exist_ok=True)
        return self.work / f"{unit['kind']}-{key_of(unit)}"

    def _keep(self, unit: Unit, result: dict[str, Any], watch: Watch) -> None:
        self.kept.keep(unit, result, {**watch.read(), **circumstances()})


def rules_of(unit: Unit) -> dict[str, Any]:
    """The rules of shared layers, of a variant that has ``rules`` such as ``{"stem": 4}``."""
    return {name: npp.Lag(lag) for name, lag in unit["variant"].get("rules", {}).items()}


def free_name(run: Any) -> str:
    """A name for a search that the run has not."""
    return f"own-{len(list(run.path.glob('search-*')))}"


@torch.no_grad()
def judged(network: Sequence[torch.nn.Module], images: Any) -> dict[str, float]:
    """Mean loss and share of right answers over all batches of a split."""
    loss, right, count = 0.0, 0, 0
    for layer in network:
        layer.eval()
    for number in range(images.batches_per_epoch):
        batch = images(0, number)
        out, target = forward(network, batch["input"])[0], batch["target"]
        loss += float(torch.nn.functional.cross_entropy(out, target, reduction="sum"))
        right += int((out.argmax(1) == target).sum())
        count += len(target)
    return {"loss": loss / count, "top1": right / count}


def curve(losses: Sequence[float], points: int) -> list[float]:
    """Means of so many stretches of equal length, or all losses where there are fewer."""
    ends = [len(losses) * n // points for n in range(points + 1)]
    parts = [losses[low:high] for low, high in pairwise(ends) if high > low]
    return [round(sum(part) / len(part), 5) for part in parts]


@cache
def place() -> dict[str, Any]:
    """Commit, processor and versions."""
    said = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(said, capture_output=True, text=True).stdout.strip()
    found = describe_environment()
    return {
        "commit": commit,
        "processor": found["hardware"]["processor"],
        "cpu_capability": found["hardware"]["cpu_capability"],
        "torch": found["software"]["torch"],
        "nni": found["software"].get("nni", ""),
    }


def circumstances() -> dict[str, Any]:
    """Where and when a unit was done, and how busy the machine was."""
    load = round(os.getloadavg()[0], 2)
    return {"at": time.strftime("%Y-%m-%d %H:%M"), "load": load, **place()}
