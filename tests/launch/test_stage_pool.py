"""Stages' processes: started together, heard, told, and none is left, whatever they do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from naspipe.config.errors import ConfigError, StageFailedError
from naspipe.config.execution import Execution
from naspipe.config.ids import FIRST_STREAM
from naspipe.launch.stage_pool import (
    LauncherSide,
    Mailboxes,
    run_stages,
)
from naspipe.launch.stopping import Stop
from naspipe.launch.supervisor import StageReports
from naspipe.machine.forking import FORK, check_fit_for_forking, end_all, quiet_fork
from naspipe.wire.endpoints import ipc_endpoints
from naspipe.wire.messages import HOLD, ContributionMessage, ControlMessage
from naspipe.wire.transport import Wakeup
from naspipe.worker.job import OnePipeline

SECONDS = 20.0
"""Deadline of every wait."""


class Work:
    """A stage's work on nothing: what it does is a function of the stage."""

    current = "its work"

    def __init__(self, job, seat):
        self.act, self.seat = job.act, seat
        self.stage, self.transport = seat.stage, seat.transport

    def run(self):
        self.seat.reporter.report("done", {"said": self.act(self)})


class Pool:
    """Everything that stages are run with."""

    def __init__(self, stack, act, stages=2, **execution):
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="np")))
        self.stages, self.mailboxes = stages, Mailboxes()
        self.wakeup = stack.enter_context(Wakeup())
        self.stop = Stop(stages, self.mailboxes.send)
        self.job = SimpleNamespace(
            execution=Execution(stages=stages, **execution), memory=None, threads=1,
            positions=OnePipeline(stages), claimed=[self.directory], act=act,
        )  # fmt: skip

    def run(self, start=lambda: None):
        reports = StageReports(self.stages)
        side = LauncherSide(
            collector=reports, start=start, stop=self.stop, wakeup=self.wakeup,
            mailboxes=self.mailboxes,
        )  # fmt: skip
        run_stages(self.job, Work, ipc_endpoints(self.directory, self.stages), side)
        return {stage: body["said"] for stage, body in reports.results.items()}


@pytest.fixture
def pool():
    """Makes pools; afterwards no stage is left."""
    with ExitStack() as stack:
        yield lambda act, **kw: Pool(stack, act, **kw)
        assert multiprocessing.active_children() == []


def pid(work):
    return os.getpid()


def test_every_stage_has_a_process_of_its_own_which_ends(pool):
    found = pool(pid, stages=3).run()
    assert sorted(found) == [0, 1, 2] and len({*found.values(), os.getpid()}) == 4
    assert not any(Path(f"/proc/{each}").exists() for each in found.values())


def test_stages_reach_one_another(pool):
    def talk(work):
        other = 1 - work.stage
        said = ContributionMessage("norms", FIRST_STREAM, 4, work.stage, {"0.0": 1.5})
        work.transport.send(other, said)
        return list(work.transport.receive(SECONDS))

    assert pool(talk).run() == {
        0: ["norms", 0, 4, 1, {"0.0": 1.5}], 1: ["norms", 0, 4, 0, {"0.0": 1.5}],
    }  # fmt: skip


def test_what_the_launcher_says_before_they_are_there_arrives(pool):
    """Told as soon as messages can be sent, not before."""

    def listen(work):
        return work.transport.receive(SECONDS).what

    made = pool(listen)
    told = [ControlMessage(HOLD)] * 2
    found = made.run(lambda: [made.mailboxes.send(*each) for each in enumerate(told)])
    assert found == {0: HOLD, 1: HOLD}


def test_a_stage_in_this_process_has_a_queue():
    mailboxes = Mailboxes()
    mailboxes.send(0, ControlMessage(HOLD))
    assert mailboxes.local == deque([ControlMessage(HOLD)])


def divide(work):
    if work.stage == 1:
        return 1 / 0
    time.sleep(SECONDS)
    return None


def kill(work):
    if work.stage == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(SECONDS)


@pytest.mark.parametrize(
    ("act", "said"), [(divide, "ZeroDivisionError"), (kill, "killed by signal 9")]
)
def test_the_failure_of_one_ends_all_at_once(pool, act, said):
    start = time.monotonic()
    with pytest.raises(StageFailedError, match=said) as caught:
        pool(act).run()
    assert caught.value.stage == 1 and time.monotonic() - start < SECONDS / 2


def test_what_cannot_be_used_is_said_in_one_line(pool):
    def refuse(work):
        raise ConfigError("expected another layer")

    with pytest.raises(ConfigError, match=r"^expected another layer$"):
        pool(refuse).run()


def test_a_stage_that_hangs_is_given_up(pool):
    with pytest.raises(StageFailedError, match="at this for") as caught:
        pool(lambda work: time.sleep(SECONDS), stages=1, timeout_seconds=2.0).run()
    assert caught.value.task == "its work"


def test_what_ends_the_launcher_ends_them(pool):
    """They are recorded as long as they may be there, for whoever has to end them else."""
    made = pool(lambda work: time.sleep(SECONDS))

    def interrupt():
        assert (made.directory / ".processes.json").exists()
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        made.run(interrupt)
    assert time.monotonic() - start < SECONDS / 2


def test_signals_are_the_launchers_to_answer(pool):
    def deaf(work):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return "still here"

    assert pool(deaf, stages=1).run() == {0: "still here"}


def test_a_process_that_has_used_cuda_cannot_fork(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    check_fit_for_forking("cpu")
    with pytest.raises(ConfigError, match="this process has used CUDA already"):
        check_fit_for_forking("cuda")


def test_ending_leaves_no_process_behind():
    """One that is done, one that sleeps, one that is stopped."""
    with quiet_fork():
        made = [FORK.Process(target=time.sleep, args=(n,)) for n in (0, SECONDS, SECONDS)]
        for process in made:
            process.start()
    pids = [process.pid for process in made]
    os.kill(pids[2], signal.SIGSTOP)
    end_all(made)
    assert not any(Path(f"/proc/{each}").exists() for each in pids)
