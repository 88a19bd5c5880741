"""The same command, started by torchrun once per stage: who does what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError, NaspipeError, RunInterruptedError
from naspipe.frontend.training.assignment import assign, assigned_job, started_by
from naspipe.frontend.training.generations import how_to_go_on
from naspipe.frontend.training.training import Training
from naspipe.runtime.processes.agent import run_agent
from naspipe.runtime.processes.hosts import Hosts, OtherHosts, join, tell_end
from naspipe.runtime.processes.rendezvous import Worker, WorkerCard, exchange_cards, parent_identity
from naspipe.runtime.processes.stopping import end_parent_too


def execution_of(worker: Worker, execution: Execution, asked_stages: int | None) -> Execution:
    """How a run under torchrun is carried out: a stage of a group for every worker, over tcp.

    Args:
        worker: this one.
        execution: what the user asked for.
        asked_stages: on the command line, if at all.

    Raises:
        ConfigError: for what torchrun decides, or cannot be had over several hosts.
    """
    groups = execution.pipeline.groups
    stages, left = divmod(worker.world_size, groups)
    if left or not stages:
        raise ConfigError(
            f"--groups {groups}: expected as many of torchrun's workers in each group, found "
            f"{worker.world_size} workers; start a multiple of {groups}, or choose other groups"
        )
    if asked_stages not in (None, stages):
        raise ConfigError(
            f"--stages {asked_stages}: expected one stage for each of torchrun's workers, found "
            f"{worker.world_size} workers for {groups} groups; leave it out, or start "
            f"{asked_stages * groups} of them"
        )
    if execution.watch.max_restarts:
        raise ConfigError(
            f"--max-restarts {execution.watch.max_restarts}: expected torchrun's own (torchrun "
            f"--max-restarts {execution.watch.max_restarts} ...), which starts all hosts anew"
        )
    if execution.wire.data_path not in ("shm", "zmq"):
        raise ConfigError(
            f"data_path={execution.wire.data_path}: expected zmq under torchrun; use --set "
            f"data_path=zmq"
        )
    if execution.teaching.teachers:
        raise ConfigError(
            f"--teachers {execution.teaching.teachers}: expected none under torchrun, as hosts "
            f"share no directory; start them with naspipe teach --registry redis://HOST, and name "
            f"it by --set teacher_registry=redis://HOST"
        )
    if execution.teaching.registry.startswith("tcp://"):
        raise ConfigError(
            "teacher_registry=tcp://...: expected redis://HOST under torchrun, where no host is "
            "the run's own"
        )
    if execution.wire.link_bandwidth or execution.wire.link_latency:
        raise ConfigError(
            "link_bandwidth, link_latency: expected none under torchrun, as hosts have no common "
            "clock; emulate a link with --stages and --groups on one machine"
        )
    return execution.changed(stages=stages, transport="tcp")


def train_as_worker(training: Training, worker: Worker, *, has_place: bool) -> None:
    """Do a worker's part: rank 0 runs the training, the others run their stage for it.

    Args:
        training: of all.
        worker: this one.
        has_place: whether the user named the run directory.

    Raises:
        ConfigError: when the hosts do not fit together, or anything else cannot be used.
        TransportError: when a host is gone.
    """
    if not has_place:
        raise ConfigError(
            "--run-dir: expected a directory on a file system that all hosts share, which a "
            "restart finds again; found none"
        )
    hosts = join(worker, training.execution)
    if worker.rank:
        prepare = partial(assigned_job, training, hosts)
        is_causal = training.traits.is_causal
        said = how_to_go_on(training.sources, training.path) if is_causal else ""
        with _ended_everywhere(hosts), _introduced(hosts, training.observer.on_note):
            run_agent(
                hosts, training.execution, prepare, answers_signals=is_causal, how_to_go_on=said
            )
        return
    with _told(hosts), _ended_everywhere(hosts):
        resumes = training.resumes or _is_restart(training, hosts)
        others = OtherHosts(hosts=hosts, assign=partial(assign, training, hosts))
        replace(training, resumes=resumes, others=others).run()


@contextmanager
def _introduced(hosts: Hosts, say: Callable[[str], None]) -> Iterator[None]:
    """Where nothing is shown, a line at the start says where it is, and one that all went well."""
    worker, first = hosts.worker, hosts.places[0].on(0)
    who = f"rank {worker.rank} of {worker.world_size} on {hosts.names[worker.rank]}"
    is_one_of_its_host = worker.local_rank == 0
    if is_one_of_its_host:
        say(f"{who} works for {first}; progress is shown there")
    yield
    if is_one_of_its_host:
        say(f"{who} is done: the run is complete")


def _is_restart(training: Training, hosts: Hosts) -> bool:
    """Whether the run directory holds a run that the same torchrun began."""
    return bool(started_by(training.path) & {each for each in hosts.started_by if each})


@contextmanager
def _told(hosts: Hosts) -> Iterator[None]:
    """Whatever happens here, the other workers hear of the end."""
    problem, signal_number = "rank 0 failed", 0
    try:
        yield
        problem = ""
    except NaspipeError as error:
        problem = str(error).partition("\n")[0]
        if isinstance(error, RunInterruptedError):
            signal_number = error.signal_number
        raise
    finally:
        tell_end(hosts, problem, signal_number)


@contextmanager
def _ended_everywhere(hosts: Hosts) -> Iterator[None]:
    """A signal to one host ends the torchrun of every host.

    torchrun starts anew what did not end well, waits ten minutes for the host that has left, and
    takes no exit status as a wish to end: it has to get the signal, too. One of its workers hands
    it on, unless it came from there.
    """
    try:
        yield
    except RunInterruptedError as error:
        worker = hosts.worker
        is_there = parent_identity() == hosts.started_by[worker.rank]
        if error.from_elsewhere and worker.is_torchruns and worker.local_rank == 0 and is_there:
            end_parent_too()
        raise


def refuse(worker: Worker, problem: str) -> None:
    """Tell the other workers that this one cannot take part, so that none waits for it.

    Raises:
        ConfigError: with that problem, and those of others.
    """
    card = WorkerCard(address="", public_key="", started_by="", problem=problem)
    exchange_cards(worker, card, Execution().watch.timeout_seconds)
