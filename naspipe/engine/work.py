"""The tasks of each subnet under way on a stage, and their progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from naspipe.config.ids import LayerId, StageId, Subnet, Version
from naspipe.config.partition import Partition
from naspipe.config.wiring import CHAIN, InputName
from naspipe.engine.events import SubnetAdmitted, Task, TaskKind
from naspipe.engine.versions import Ticket


@dataclass(slots=True)
class Work:
    """The progress of one task: blocks that have not run yet, and what is still missing."""

    task: Task
    subnet: Subnet
    tickets: dict[int, Ticket]
    todo: list[int]
    """Blocks that have not finished, the next one last."""
    unclear: set[int] = field(default_factory=set)
    """Blocks whose version or own input is not available. A subnet's forward and backwards share
    one set, so that no layer is loaded too early."""
    num_unread: int = 0
    """Number of versions and earlier passes that blocks of a forward still wait for. Inputs do not
    count, because an input may be made by another pass of the same step, which may in turn need
    this pass's output."""
    missing: set[InputName] = field(default_factory=lambda: {CHAIN})
    """Inputs that have not arrived. The task cannot begin without the chain's input."""
    begins_here: bool = False
    """True if the block where a backward begins is on this stage."""
    receiver: Task | None = None
    """The task on another stage that takes the output; None if the chain, or the part that a
    backward goes through, ends here."""
    priorities: tuple[int, ...] = ()
    """Priority of each block of the chain; empty if the dispatch order uses none."""
    is_queued: bool = False

    @property
    def priority(self) -> int:
        return self.priorities[self.todo[-1]] if self.priorities else 0

    def clear_reads(self, limit: int | None) -> list[tuple[LayerId, Version]]:
        """Return the layers and versions of the next clear blocks, at most ``limit`` of them."""
        reads = []
        for block in self.todo[: -(limit or len(self.todo)) - 1 : -1]:
            if block in self.unclear:
                break
            ticket = self.tickets[block]
            reads.append((ticket.layer, ticket.reads))
        return reads

    def clear_layers(self) -> list[LayerId]:
        """Return the layers of all clear blocks, in the order in which they will run."""
        tickets, unclear = self.tickets, self.unclear
        return [tickets[block].layer for block in reversed(self.todo) if block not in unclear]

    def explain(self) -> str:
        if CHAIN in self.missing:
            return f"{self.task} has no input"
        if self.unclear:
            layers = [self.tickets[block] for block in sorted(self.unclear)]
            needed = [f"{ticket.layer}v{ticket.reads}" for ticket in layers]
            return f"{self.task} waits for " + ", ".join([*needed, *sorted(self.missing)])
        return f"{self.task} is clear"


@dataclass(slots=True)
class Progress:
    """The progress of one subnet on this stage."""

    subnet: Subnet
    partition: Partition
    tickets: dict[int, Ticket]
    forward: Work
    backwards: dict[int, Work]
    """The backwards by section of the chain; empty if the subnet is not trained."""
    unsettled: int = 0
    """Number of tasks whose layers are still needed, WRITEs still owed, gates that hold the subnet,
    and outputs still to be taken. The subnet retires when it reaches 0."""
    holds: int = 0
    write_priorities: tuple[int, ...] = ()
    """Priority of the WRITE of each block of the chain; empty if every WRITE precedes all tasks."""
    writing: set[int] = field(default_factory=set)
    """Blocks whose WRITE was commanded and has not finished."""

    def work(self, task: Task) -> Work | None:
        """Return the progress of one of the subnet's tasks here; None for any other task."""
        is_forward = task.kind is TaskKind.FORWARD
        found = self.forward if is_forward else self.backwards.get(task.section)
        return found if found is not None and found.task == task else None

    def works(self) -> list[Work]:
        return [self.forward, *self.backwards.values()]

    def explain(self) -> str:
        for work in self.works():
            if work.todo:
                return work.explain()
        held = " and for the contributions to its step" if self.holds else ""
        last = self.works()[-1].task
        return f"{last} waits for {self.unsettled - self.holds} WRITEs before its own{held}"


def begin_subnet(
    event: SubnetAdmitted, stage: StageId, tickets: dict[int, Ticket], sections: Sequence[range]
) -> Progress:
    """Create a stage's record of a subnet, with one item to settle until its admission is complete.

    ``sections`` are the ranges of blocks that each of its backwards goes through.
    """
    subnet, partition = event.subnet, event.partition
    blocks = partition.blocks(stage)
    task = Task(subnet.stream, subnet.sequence_id, TaskKind.FORWARD, stage)
    forward = Work(task, subnet, tickets, list(reversed(blocks)))
    if blocks.stop < partition.num_blocks:
        forward.receiver = task.at(partition.stage_of(blocks.stop))
    if blocks.start == 0:
        forward.missing.remove(CHAIN)
    progress = Progress(subnet, partition, tickets, forward, {})
    for number, section in enumerate(sections if event.is_trained else ()):
        here = range(max(section.start, blocks.start), min(section.stop, blocks.stop))
        if here:
            back = task._replace(kind=TaskKind.BACKWARD, section=number)
            goes_on = here.start > section.start
            backward = Work(
                back,
                subnet,
                tickets,
                list(here),
                forward.unclear,
                begins_here=here.stop == section.stop,
                receiver=back.at(partition.stage_of(here.start - 1)) if goes_on else None,
            )
            progress.backwards[number] = backward
    if event.priorities:
        forward.priorities, backwards, progress.write_priorities = event.priorities
        for backward in progress.backwards.values():
            backward.priorities = backwards
    num_tasks = len(progress.backwards) or bool(blocks)
    progress.unsettled = 1 + num_tasks + sum(ticket.is_writer for ticket in tickets.values())
    return progress
