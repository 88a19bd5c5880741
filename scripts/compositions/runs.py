"""naspipe's execution of a case, and its comparison with the plain loop.

Every attempt runs in a process of its own, forked from one that has imported torch. A fault of any
kind, a hang included, so ends in one row and not in the end of the check.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import naspipe as npp
from naspipe.api import planning as run_plan
from naspipe.config.errors import ConfigError, RunInterruptedError, StageFailedError
from naspipe.config.recipe import Recipe
from naspipe.machine.forking import in_own_thread
from naspipe.profiling import profiles as profile_apart
from naspipe.store.checkpoints import read_checkpoint
from naspipe.store.run_directory import RunDirectory
from naspipe.streams.stream_file import read_stream
from naspipe.worker.checkpoints.restored import from_raw
from scripts.compositions import networks, plain
from scripts.compositions.cases import Case, execution_of, get, recipe_of, steps_of
from scripts.compositions.networks import LR, PARAMETER_GROUPS

DEADLINE_SECONDS = 100.0
"""How long one attempt may take. The slowest takes about five seconds on an idle machine."""

FIRST_PORT, PORTS, SLOTS = 10_000, 16, 1_370
"""Of runs over TCP: each process of the check has ports of its own, below those that the system
gives to whoever asks for any."""

EQUAL, DIFFERS, REFUSED, FAILED, HANGS = "equal", "differs", "refused", "failed", "hangs"

_CACHED_PROFILE = run_plan.cached_profile

Before = Callable[[], None]
"""Done in the process of an attempt before it begins, such as a deliberate fault."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case."""

    kind: str
    """One of the five above."""
    detail: str = ""
    """The first difference, or the message of an error."""
    seconds: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Equal, or refused as a page says."""
        return self.kind == EQUAL or (self.kind == REFUSED and is_documented(self.detail))

    @property
    def signature(self) -> str:
        """The kind, and of an error its text without numbers: what shrinking has to keep."""
        if self.kind in (EQUAL, DIFFERS, HANGS):
            return self.kind
        return f"{self.kind} {re.sub(r'[0-9.:]+', '#', self.detail)[:60]}"


REFUSALS: tuple[str, ...] = ()
"""Messages of refusals that a page explains; filled in below."""


def is_documented(message: str) -> bool:
    """Whether a page says that this is refused."""
    return any(re.search(each, message) for each in REFUSALS)


class Greedy:
    """A strategy whose next subnet is a function of every score that it was told."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self._counts, self._told = counts, 0

    def propose(self, sequence_id: int) -> list[int]:
        """The choices of a subnet."""
        return [
            (self._told + sequence_id * (block + 1)) % count
            for block, count in enumerate(self._counts)
        ]

    def observe(self, sequence_id: int, score: float) -> None:
        """A subnet's score; a loss that is no number counts as a constant."""
        self._told += int(min(abs(score), 100.0) * 1e4) if score == score else 7


class Stopping:
    """Data that end the run once, where the batch of one pass is read."""

    def __init__(self, data: Any, how: str, number: int, marker: Path) -> None:
        self._data, self._how, self._number, self._marker = data, how, number, marker
        self._launcher = os.getpid()
        for name in (
            "record",
            "batches_per_epoch",
            "views",
            "batches",
            "local",
            "passes",
            "lessons",
        ):
            if hasattr(data, name):
                setattr(self, name, getattr(data, name))

    def __call__(self, seed: int, number: int) -> Mapping[str, torch.Tensor]:
        """The batch."""
        if number >= self._number and self._how != "none" and self._is_first():
            if self._how == "fail":
                time.sleep(0.1)
                raise RuntimeError("injected")
            if self._how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os.kill(self._launcher, signal.SIGINT)
            time.sleep(0.3)
        found: Mapping[str, torch.Tensor] = self._data(seed, number)
        return found

    def _is_first(self) -> bool:
        try:
            self._marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def check(case: Case, before: Before | None = None) -> Outcome:
    """Train a case with naspipe and in a plain loop, and compare every bit.

    Args:
        case: see :mod:`scripts.compositions.cases`.
        before: done in the processes of naspipe's attempts, not in that of the plain loop.
    """
    start = time.monotonic()
    with _folder() as folder:
        outcome = _check(case, folder, before)
    return Outcome(outcome.kind, outcome.detail, time.monotonic() - start)


def _check(case: Case, folder: Path, before: Before | None) -> Outcome:
    port = FIRST_PORT + PORTS * (os.getpid() % SLOTS)
    attempts = ["run"] if get(case, "stop.how") == "none" else ["run", "then"]
    for number, part in enumerate(attempts):
        ended = _apart(partial(_train, case, part, folder, port, number > 0), folder, before)
        if ended.kind == HANGS or (ended.kind == FAILED and number == len(attempts) - 1):
            return ended
        if ended.kind == REFUSED:
            return ended
        if ended.kind == FAILED and not _is_asked_for(ended.detail, get(case, "stop.how")):
            return ended
        if ended.kind == EQUAL:
            break
    found = _apart(partial(_left, case, folder), folder)
    if found.kind != EQUAL:
        return found
    expected = _apart(partial(_expected, case, folder), folder)
    if expected.kind != EQUAL:
        return Outcome(FAILED, f"plain loop: {expected.detail}")
    return _compared(found.more, expected.more)


def warm_up() -> None:
    """Import everything that a run needs, so that no forked process has to.

    Layers are measured as briefly as possible: costs decide where they run, which changes no bit.
    """
    profile_apart.profile = partial(profile_apart.profile, budget_seconds=0.01)
    case: Case = {"family": "supernet", "steps": 2}
    with _folder() as folder:
        _train(case, "run", folder, FIRST_PORT, is_resumed=False)
        plain.results(case, {"": read_stream(RunDirectory(folder / "run").stream)})


def _is_asked_for(message: str, how: str) -> bool:
    """Whether an attempt ended as the case says that it should."""
    return {
        "interrupt": "RunInterruptedError" in message,
        "kill": "KILLED" in message or "SIGKILL" in message or "signal 9" in message,
        "fail": "injected" in message,
    }[how]


def _compared(found: Mapping[str, str], expected: Mapping[str, str]) -> Outcome:
    if missing := sorted(expected.keys() ^ found.keys()):
        where = "naspipe" if missing[0] in expected else "the plain loop"
        return Outcome(DIFFERS, f"{where} lacks {missing[0]} ({len(missing)} in all)")
    wrong = [name for name in sorted(expected) if expected[name] != found[name]]
    if not wrong:
        return Outcome(EQUAL)
    losses = [name for name in wrong if "loss/" in name]
    return Outcome(
        DIFFERS,
        f"{len(losses)} losses, the first {losses[0] if losses else 'none'}; "
        f"{len(wrong) - len(losses)} tensors, such as {wrong[-1]}",
    )


@contextmanager
def _folder() -> Iterator[Path]:
    place = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="compositions-", dir=place if place.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _apart(
    do: Callable[[], Mapping[str, Any]], folder: Path, before: Before | None = None
) -> Outcome:
    """Do something in a forked process, within the deadline."""
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _in_child(do, told, before)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Outcome(HANGS, f"no end within {DEADLINE_SECONDS:g} s")
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not told.exists():
        return Outcome(FAILED, f"KILLED with status {status}")
    body = json.loads(told.read_text())
    return Outcome(body["kind"], body["detail"], more=body["more"])


def _in_child(do: Callable[[], Mapping[str, Any]], told: Path, before: Before | None) -> None:
    os.setpgid(0, 0)
    torch.set_num_threads(1)  # the helpers of the process that forked this one stayed with it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with told.with_name("output").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    kind, detail, more = FAILED, "", {}
    try:
        if before is not None:
            before()
        kind, more = EQUAL, dict(do())
    except ConfigError as error:
        kind, detail = REFUSED, str(error)
    except (StageFailedError, RunInterruptedError, Exception) as error:
        detail = f"{type(error).__name__}: {error}"
        if not isinstance(error, npp.NaspipeError):
            detail += "\n" + traceback.format_exc()
    except BaseException as error:
        detail = type(error).__name__
    part = told.with_suffix(".part")
    part.write_text(json.dumps({"kind": kind, "detail": detail, "more": more}))
    part.rename(told)
    os._exit(0)


def _train(case: Case, part: str, folder: Path, port: int, is_resumed: bool) -> Mapping[str, Any]:
    """One attempt."""
    run_dir = folder / "run"
    run_plan.cached_profile = partial(_CACHED_PROFILE, root=folder / "profiles")
    execution = {
        **execution_of(case, part),
        "port": port,
        "timeout_seconds": DEADLINE_SECONDS / 3,
    }
    if execution.get("labels") == "file":
        execution["labels"] = f"file:{_labels(case, folder)}"
    recipe = {**recipe_of(case), "lr": LR}
    if groups := PARAMETER_GROUPS[get(case, "parameter_groups")]:
        recipe["parameter_groups"] = groups
    recipe["optimizer_options"] = networks.optimizer_options(case)
    how: dict[str, Any] = {
        "steps": get(case, "steps"), "seed": get(case, "seed"), "run_dir": run_dir,
        "recipe": recipe, "execution": execution, "progress": False,
        "resume": "if_exists" if is_resumed else False,
    }  # fmt: skip
    stops = partial(
        Stopping, how="none" if is_resumed else get(case, "stop.how"),
        number=get(case, "stop.at"), marker=folder / "marker",
    )  # fmt: skip
    {
        "supernet": _train_supernets, "teacher": _train_taught, "momentum": _train_followed,
        "blockwise": _train_blocks, "mixed": _train_mixed,
    }[case["family"]](case, how, stops)  # fmt: skip
    return {}


def _labels(case: Case, folder: Path) -> Path:
    """A file of the teacher's labels, written once."""
    path = folder / "labels"
    if not path.exists():
        npp.write_labels(
            _teacher(case), networks.Batches(case), path, seed=get(case, "seed"),
            batches=get(case, "steps") * steps_of(case).passes,
            recipe=Recipe(**{key: get(case, f"recipe.{key}") for key in ("precision", "threads")}),
        )  # fmt: skip
    return path


def _train_supernets(case: Case, how: dict[str, Any], stops: Any) -> None:
    space, loss = networks.space_of(case), networks.loss_of(case)

    def identity_of_stream() -> dict[str, Any]:
        sampler: Any = get(case, "sampler")
        if sampler == "greedy":  # each stream has a strategy of its own
            sampler = Greedy(space.drawn_counts)
        return {**identity, "sampler": sampler}

    identity: dict[str, Any] = {"policy": get(case, "policy")}
    if get(case, "run.validate_every") or get(case, "then.validate_every"):
        identity["held_out"] = networks.Batches({**case, "infinite": "never"}, 900_000)
    if get(case, "streams") == 1:
        npp.train(space, stops(networks.Batches(case)), loss, **how, **identity_of_stream())
        return
    execution, run_dir = npp.Execution(**how.pop("execution")), how.pop("run_dir")
    resume, progress = how.pop("resume"), how.pop("progress")
    workloads = [
        npp.workload(
            space, stops(networks.Batches(case, 100_000 * number)), loss,
            **{**how, "seed": how["seed"] + 7 * number}, **identity_of_stream(),
        )
        for number in range(get(case, "streams"))
    ]  # fmt: skip
    npp.train_together(workloads, execution, run_dir, resume=resume, progress=progress)


def _teacher(case: Case) -> npp.Teacher:
    return npp.Teacher(
        networks.teacher_modules(), mode=get(case, "teacher.mode"), top=get(case, "teacher.top")
    )


def _train_taught(case: Case, how: dict[str, Any], stops: Any) -> None:
    npp.train(
        networks.space_of(case), stops(networks.Batches(case)), networks.loss_of(case), **how,
        sampler=get(case, "sampler"), policy=get(case, "policy"), teacher=_teacher(case),
    )  # fmt: skip


def _train_followed(case: Case, how: dict[str, Any], stops: Any) -> None:
    names = ("end", "lag", "mode", "buffers")
    said = {name: case[f"momentum.{name}"] for name in names if f"momentum.{name}" in case}
    if get(case, "momentum.without") is not None:
        said["without"] = ["predictor"]
    if network := plain.momentum_network(case):
        said["network"] = network
    tau = get(case, "momentum.tau")
    data = plain.views_of(case)
    if isinstance(data, npp.Views):
        data.plain = stops(data.plain)
    else:
        data = stops(data)
    npp.train(
        plain.momentum_space(case), data, networks.loss_of(case), **how,
        sampler=get(case, "sampler"), policy=get(case, "policy"),
        teacher=npp.Momentum(0.9 if tau is None else tau, **said),
    )  # fmt: skip


def _train_blocks(case: Case, how: dict[str, Any], stops: Any) -> None:
    losses = {}
    if get(case, "blockwise.loss") == "own":
        losses = {"loss": networks.Squares(), "last_loss": networks.Squares()}
    _distill(
        case, plain.block_students(case), stops(networks.Batches(case)), how,
        sampler=get(case, "sampler"), **losses,
    )  # fmt: skip


def _distill(case: Case, students: Any, data: Any, how: dict[str, Any], **more: Any) -> None:
    del how["progress"]
    npp.distill_blockwise(plain.block_teachers(case), students, data, **how, **more)


def _train_mixed(case: Case, how: dict[str, Any], stops: Any) -> None:
    how["recipe"]["optimizer_options"] = {**plain.EDGE_OPTIONS, "alpha_lr": 0.1}
    gates, has_costs = get(case, "mixed.gates"), get(case, "mixed.costs")
    students = [
        npp.mixed.student(
            f"edges{number}", layers, gates=gates,
            **({"operations": table, "reference": reference} if has_costs else {}),
        )
        for number, (layers, table, reference) in enumerate(plain.edge_chains(case))
    ]  # fmt: skip
    data = plain.edge_data(case)
    last = torch.nn.CrossEntropyLoss()
    if get(case, "mixed.as") == "chain":
        loss: Any = npp.losses.CostTerm(last, weight=1.5) if has_costs else last
        npp.train(students[0], stops(data), loss, **how)
        return
    losses = {}
    if has_costs:
        losses = {
            "loss": npp.losses.CostTerm(weight=1.5),
            "last_loss": npp.losses.CostTerm(last, weight=1.5),
        }
    _distill(case, students, stops(data), how, **losses)


def _places(case: Case) -> list[str]:
    """Where a run's parts are, below its directory."""
    if case["family"] == "supernet" and get(case, "streams") > 1:
        return [f"stream-{number}/" for number in range(get(case, "streams"))]
    if case["family"] == "blockwise":
        return [f"block-{number}/" for number in range(get(case, "blockwise.blocks"))]
    if case["family"] == "mixed" and get(case, "mixed.as") == "blocks":
        return [f"block-{number}/" for number in range(3)]
    return [""]


def _left(case: Case, folder: Path) -> Mapping[str, str]:
    """A digest of everything that the run left."""
    found: plain.Found = {}
    places = _places(case)
    for place in places:
        directory = RunDirectory(folder / "run" / place)
        losses = list(directory.read_losses())
        assert directory.read_manifest()["status"] == "complete", "the run's status is not complete"
        found |= {f"{place}loss/{n:04}": f"{int(each.bits, 16):x}" for n, each in enumerate(losses)}
        found |= _tensors(place, directory)
    if case["family"] == "momentum":
        found |= _tensors("teacher/", RunDirectory(folder / "run/teacher"))
    return found


def _tensors(place: str, directory: RunDirectory) -> plain.Found:
    checkpoint = read_checkpoint(directory.checkpoint("final"))
    found = {
        f"{place}{name.partition('/')[2]}": plain.digest_of(from_raw(raw))
        for name, raw in checkpoint.tensors.items()
        if "/version/" not in name
    }
    return found | {
        f"{place}{name.partition('/')[2]}": repr(value)
        for name, value in checkpoint.scalars.items()
    }


def _expected(case: Case, folder: Path) -> Mapping[str, str]:
    """What the plain loop leaves, for the streams that the run recorded."""
    streams = {
        place: read_stream(RunDirectory(folder / "run" / place).stream) for place in _places(case)
    }
    threads = get(case, "recipe.threads")
    return in_own_thread(threads, lambda: plain.results(case, streams))
