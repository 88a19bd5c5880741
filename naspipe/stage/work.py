"""What a controller keeps of each subnet that is under way on its stage."""

from __future__ import annotations

from dataclasses import dataclass, field

from naspipe.core.ids import LayerId, Version
from naspipe.core.partition import Partition
from naspipe.core.subnet import Subnet
from naspipe.core.task import Task
from naspipe.schedule.versions import Ticket


@dataclass(slots=True)
class Work:
    """One task's progress: blocks not yet run, and those whose version does not exist yet."""

    task: Task
    tickets: dict[int, Ticket]
    todo: list[int]
    """Blocks not yet finished, the next one last."""
    unclear: set[int] = field(default_factory=set)
    """One set for a subnet's forward and backward, so that neither is loaded too early."""
    priorities: tuple[int, ...] = ()
    """By block of the chain; empty where the order asks for none."""
    has_input: bool = False
    is_queued: bool = False

    @property
    def priority(self) -> int:
        """Of the next block."""
        return self.priorities[self.todo[-1]] if self.priorities else 0

    def clear_reads(self, limit: int | None) -> list[tuple[LayerId, Version]]:
        """Layers and versions of the next blocks that are clear, ``limit`` at most."""
        reads = []
        for block in self.todo[: -(limit or len(self.todo)) - 1 : -1]:
            if block in self.unclear:
                break
            ticket = self.tickets[block]
            reads.append((ticket.layer, ticket.reads))
        return reads

    def clear_layers(self) -> list[LayerId]:
        """Layers of all its blocks that are clear, in the order in which they will run."""
        tickets, unclear = self.tickets, self.unclear
        return [tickets[block].layer for block in reversed(self.todo) if block not in unclear]


@dataclass(slots=True)
class Progress:
    """One subnet on this stage."""

    subnet: Subnet
    partition: Partition
    tickets: dict[int, Ticket]
    forward: Work
    backward: Work
    unwritten: int
    """WRITEs still owed, plus one until the last task is through."""
    is_trained: bool = True
    """Whether a backward follows the forward."""
    is_released: bool = True
    """Whether its WRITEs may begin as soon as nothing else is in their way."""
    writing: set[int] = field(default_factory=set)
    """Blocks whose WRITE was commanded and has not finished."""

    def explain(self) -> str:
        """What it waits for, for error messages."""
        work = self.forward if self.forward.todo else self.backward
        if not work.todo:
            held = "" if self.is_released else " and for the norms of its step"
            return f"{work.task} waits for {self.unwritten} WRITEs before its own{held}"
        if not work.has_input:
            return f"{work.task} has no input"
        if work.unclear:
            layers = [self.tickets[block] for block in sorted(work.unclear)]
            return f"{work.task} waits for " + ", ".join(f"{t.layer}v{t.reads}" for t in layers)
        return f"{work.task} is clear"
