"""Check the log of a finished run, a few layers at a time, and compute its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from naspipe.config.errors import InvariantError
from naspipe.config.ids import FIRST_STREAM, INITIAL, Access, LayerId, StreamId
from naspipe.config.rules import Exact, Follows, Frozen, Rule, rule_of, rule_with_state
from naspipe.engine.invariants import layer_violations, led, violations
from naspipe.plan.costs import first_of_kind
from naspipe.store.access_columns import BACKWARD, FORWARD, WRITE, AccessColumns, from_accesses
from naspipe.store.access_log import RunLog, joint_parts, read_joint_accesses
from naspipe.store.access_order import groups_of_layers
from naspipe.store.access_segments import Wanted
from naspipe.store.metrics import summarize_parts
from naspipe.worker.job import StreamJob, TrainingJob

Chains = NDArray[np.int32]

NOT_CHECKED = (
    "an earlier attempt did not record every access (access_log), so the order of accesses was "
    "not checked and the bubble ratio was not measured"
)


def check_and_measure(job: TrainingJob) -> dict[str, float]:
    """Check the logs of all streams of a job; return the metrics of the whole pipeline.

    Raises:
        InvariantError: if a log violates its policy, which is always a bug.
    """
    _check_orders(job)
    directories = [stream.directory.path for stream in job.streams]
    found = summarize_parts(lambda: joint_parts(directories), job.execution.workers)
    return {
        "bubble_ratio": found.bubble_ratio,
        "hit_rate": found.hit_rate,
        "stall_ratio": found.stall_ratio,
    }


def _check_orders(job: TrainingJob) -> None:
    steps, is_alone = job.steps, len(job.streams) == 1
    is_simple = is_alone and not (steps.distills or steps.is_gated)
    if is_simple and job.streams[0].workload.is_trained:
        _refuse(_by_layer(job.streams[0], job), job.policy)
        return
    logs = read_joint_accesses([stream.directory.path for stream in job.streams])
    for number in range(len(logs)):
        _refuse(_together(StreamId(number), logs, job), job.policy)


def _refuse(broken: Iterator[str], policy: str) -> None:
    first = next(broken, None)
    if first is not None:
        count = 1 + sum(1 for _ in broken)
        raise InvariantError(f"{count} rules of the policy {policy} broken: {first}")


def _by_layer(stream: StreamJob, job: TrainingJob) -> Iterator[str]:
    """Check a stream that has the pipeline to itself; yield violations."""
    rules, log = stream.rules, RunLog(stream.directory.path)
    buffered = job.buffered
    chains, numbers = _chains(stream)
    used = {
        LayerId(FIRST_STREAM, block, candidate)
        for block in range(len(rules))
        for candidate in np.unique(chains[:, block]).tolist()
    }
    nothing = from_accesses(())
    counts = dict.fromkeys(used, 0) | log.layers
    for group in groups_of_layers(counts):
        columns = log.columns(Wanted(layers=group)).by_layer()
        for layer in sorted(group):
            own = columns.get(layer, nothing)
            users = numbers[chains[:, layer.block] == layer.candidate]
            rule = rule_of(rules, layer)
            if job.policy == "csp" and job.steps.passes == 1 and _is_right(rule, users, own):
                continue
            is_ordered = buffered is None or layer in buffered
            yield from layer_violations(
                layer,
                rule,
                users.tolist(),
                own.accesses(),
                job.policy,
                job.bulk,
                job.steps,
                is_ordered,
            )


def _chains(stream: StreamJob) -> tuple[Chains, NDArray[np.int64]]:
    """Return the candidates and the sequence ID of each nonempty subnet."""
    blocks = len(stream.workload.space.rules)
    dtype: Any = np.dtype((np.int32, blocks))
    used = ((each.candidates or each.chain) for each in stream.so_far if each.chain)
    rows = np.fromiter(used, dtype)
    numbers = (subnet.sequence_id for subnet in stream.so_far if subnet.chain)
    return rows.reshape(-1, blocks), np.fromiter(numbers, np.int64)


def _is_right(rule: Rule, users: NDArray[np.int64], columns: AccessColumns) -> bool:
    """Return True if the accesses of a layer are those of a plain loop; False if that is uncertain.

    Each user of an exact layer must read what the previous user wrote. Its READ, backward and WRITE
    follow one another, and the next READ follows the WRITE. Each user of a frozen layer must read
    the first version.
    """
    if isinstance(rule, Frozen):
        return _is_right_frozen(users, columns)
    if not isinstance(rule, Exact) or len(columns) != 3 * len(users):
        return False
    forward, backward, write = (
        own.take(np.argsort(own.sequence_id, kind="stable"))
        for own in (columns.take(columns.kind == kind) for kind in (FORWARD, BACKWARD, WRITE))
    )
    if not all(np.array_equal(own.sequence_id, users) for own in (forward, backward, write)):
        return False
    before = np.concatenate([[INITIAL], users[:-1]])
    return bool(
        np.array_equal(forward.version, before)
        and np.array_equal(backward.version, before)
        and np.array_equal(write.version, users)
        and (forward.end_ns <= backward.start_ns).all()
        and (backward.end_ns <= write.start_ns).all()
        and (write.end_ns[:-1] <= forward.start_ns[1:]).all()
    )


def _is_right_frozen(users: NDArray[np.int64], columns: AccessColumns) -> bool:
    forward, backward = (
        own.take(np.argsort(own.sequence_id, kind="stable"))
        for own in (columns.take(columns.kind == kind) for kind in (FORWARD, BACKWARD))
    )
    return bool(
        len(columns) == 2 * len(users)
        and np.array_equal(forward.sequence_id, users)
        and np.array_equal(backward.sequence_id, users)
        and (columns.version == INITIAL).all()
        and (forward.end_ns <= backward.start_ns).all()
    )


def _together(
    number: StreamId, logs: Sequence[Sequence[Access]], job: TrainingJob
) -> Iterator[str]:
    """Check a stream among others, or steps whose passes wait for one another; yield violations."""
    stream = job.streams[number]
    accesses = logs[number]
    rules, policy = stream.rules, stream.workload.definition.policy
    alone = [subnet._replace(stream=FIRST_STREAM) for subnet in stream.so_far]
    if not stream.workload.is_written:  # labels of earlier attempts may not be logged
        logged = {each.sequence_id for each in accesses}
        begins = stream.begins
        alone = [each for each in alone if (y := each.sequence_id) >= begins or y in logged]
    steps = stream.workload.definition.recipe.steps
    buffered = job.buffered and {
        each._replace(stream=FIRST_STREAM) for each in job.buffered if each.stream == number
    }
    yield from violations(
        accesses, rules, alone, policy, job.bulk, steps, stream.workload.is_trained, buffered
    )
    followed = (rule for rule in map(rule_with_state, rules) if isinstance(rule, Follows))
    leaders = {rule.stream for rule in followed}
    for each in leaders:
        yield from led(logs[each], accesses, rules, steps)


_MOST_NAMED = 3
_KEY = "whole_backwards"


class WholeBackwards(NamedTuple):
    """Summary of the stages' reports on one stream."""

    number: int
    """Number of candidates that were to have split backwards and stayed whole."""
    line: str
    """A sentence with the number and the reasons; empty for a stream without split backwards."""


def take_whole_backwards(
    streams: Sequence[StreamJob], stages: Sequence[dict[str, Any]]
) -> list[WholeBackwards]:
    """Summarize the reports of the stages for each stream, and remove them from ``stages``.

    Candidates of blocks of the same kind count once, because the test of one of them holds for all.
    """
    reported = [entry for stage in stages for entry in stage.pop(_KEY, ())]
    return [_of_stream(number, stream, reported) for number, stream in enumerate(streams)]


def _of_stream(number: int, stream: StreamJob, reported: Sequence[list[Any]]) -> WholeBackwards:
    space = stream.workload.space
    kinds = first_of_kind(space)
    asked = {
        (kinds[block], option)
        for block, own in enumerate(space.blocks)
        for option in range(own.num_options)
        if (block, option) in stream.split
    }
    if not asked or not stream.workload.is_trained:
        return WholeBackwards(0, "")
    reasons = {
        (block, option): why
        for of_stream, block, option, why in sorted(reported)
        if of_stream == number
    }
    line = f"split backward: {len(reasons)} of {len(asked)} candidates stayed whole"
    if not reasons:
        return WholeBackwards(0, line)
    examples = {why: place for place, why in sorted(reasons.items(), reverse=True)}
    counts = Counter(reasons.values()).most_common()
    named = [
        f"{f'{count} such as ' if count > 1 else ''}{space.option_label(*examples[why])} ({why})"
        for why, count in counts[:_MOST_NAMED]
    ]
    if left := sum(count for _, count in counts[_MOST_NAMED:]):
        named.append(f"{left} for other reasons")
    return WholeBackwards(len(reasons), f"{line}: {', '.join(named)}")
