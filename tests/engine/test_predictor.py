"""The predictor on situations written by hand: which layers it names, and in what order."""

from __future__ import annotations

from naspipe.config.ids import INITIAL, LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.config.wiring import CHAIN
from naspipe.engine.events import Task, TaskKind
from naspipe.engine.orders import PaperOrder
from naspipe.engine.predictor import Predictor
from naspipe.engine.versions import Ticket
from naspipe.engine.work import Progress, Work

PARTITION = Partition((0, 1, 6, 7))
"""The middle stage, unless said otherwise, has blocks 1 to 5."""


class Situation:
    """Subnets at a stage, each with its own layers here: candidate y in every block of it."""

    def __init__(self, stage=1):
        self.stage = stage
        self.predictor = Predictor([[Exact()] * 7], PaperOrder())
        self.subnets = []
        self.running = None

    def admit(self, *, first=None, last=None):
        """A subnet with this candidate on the first and the last stage: its own if not named."""
        number = len(self.subnets)
        chain = [number] * 7
        chain[0] = number if first is None else first
        chain[6] = number if last is None else last
        blocks = PARTITION.blocks(self.stage)
        tickets = {
            block: Ticket(LayerId(0, block, chain[block]), INITIAL, INITIAL, True)
            for block in blocks
        }
        subnet = Subnet(0, number, tuple(chain))
        task = Task(0, number, TaskKind.FORWARD, self.stage)
        forward = Work(task, subnet, tickets, list(reversed(blocks)))
        backward = Work(task._replace(kind=TaskKind.BACKWARD), subnet, tickets, list(blocks))
        backward.begins_here = self.stage == 2
        backward.unclear = forward.unclear
        self.subnets.append(Progress(subnet, PARTITION, tickets, forward, {0: backward}, 6))
        self.predictor.admit(self.subnets[-1])
        return self.subnets[-1]

    def sent(self, **elsewhere):
        """A subnet whose forward is done here."""
        progress = self.admit(**elsewhere)
        progress.forward.missing.discard(CHAIN)
        progress.forward.todo.clear()
        return progress

    def queued(self, **elsewhere):
        progress = self.admit(**elsewhere)
        progress.forward.missing.discard(CHAIN)
        progress.forward.is_queued = True
        return progress

    def run(self, progress):
        progress.forward.is_queued = False
        self.running = progress.forward

    def named(self, token=None):
        """``3.1`` for block 1 of subnet 3, whichever way it goes."""
        layers = [*self.predictor.forecast((), self.subnets, self.running, token)]
        return " ".join(f"{layer.candidate}.{layer.block}" for layer in layers)


def test_what_runs_comes_first_and_then_what_is_queued():
    case = Situation()
    running, _, _ = case.queued(), case.queued(), case.queued()
    case.run(running)
    running.forward.todo.pop()
    assert case.named() == "0.2 0.3 0.4 0.5 1.1 1.2 1.3 1.4 1.5 2.1 2.2 2.3 2.4 2.5"


def test_the_heads_of_what_may_come_next_precede_the_rest():
    """Which of two inputs arrives first is not known; three layers of each are enough to begin."""
    case = Situation()
    case.sent()
    case.admit()
    heads = "0.5 0.4 0.3 1.1 1.2 1.3 "
    assert case.named() == heads + "0.2 0.1 1.4 1.5"


def test_tasks_are_ranked_anew_for_another_token_or_task_and_only_then():
    case = Situation()
    first, second = case.queued(), case.queued()
    case.run(first)
    assert case.named(token=1) == "0.1 0.2 0.3 0.4 0.5 1.1 1.2 1.3 1.4 1.5"
    first.forward.todo.pop()
    case.queued()
    assert case.named(token=1) == "0.2 0.3 0.4 0.5 1.1 1.2 1.3 1.4 1.5", "subnet 2 is no news yet"
    assert case.named(token=2).endswith("1.4 1.5 2.1 2.2 2.3 2.4 2.5")
    case.run(second)
    assert case.named(token=2).startswith("1.1 1.2 1.3 1.4 1.5 2.1")
    case.predictor.retire(first)
    case.subnets.remove(first)
    assert "2.1" in case.named(), "without a token, always"


def firsts(case):
    """The tasks named, in the order of their first layers."""
    return list(dict.fromkeys(layer.split(".")[0] for layer in case.named().split()))


def test_a_backward_that_waits_for_another_comes_after_it():
    case = Situation()
    case.admit(last=0)  # its forward has not come, so it holds 1 up for longest
    case.sent(last=0)
    case.sent(last=2)
    case.sent(last=2)
    assert firsts(case) == ["2", "0", "1", "3"]
    case.predictor.arrive(case.subnets[0].backwards[0].task, ())
    case.predictor.arrive(case.subnets[2].backwards[0].task, ())
    assert firsts(case)[0] == "1", "nobody waits any more: the oldest first"


def test_a_forward_that_waits_for_another_comes_after_one_that_does_not():
    case = Situation()
    case.run(case.queued(first=0))
    case.admit(first=0)
    case.admit(first=2)
    assert firsts(case) == ["0", "2", "1"]
    case.predictor.retire(case.subnets[0])
    case.subnets[0:1], case.running = [], None
    assert firsts(case) == ["1", "2"]


def test_what_a_neighbour_announced_comes_first():
    case = Situation()
    case.sent()
    late = case.sent(last=0).backwards[0]
    assert firsts(case) == ["0", "1"]
    case.predictor.arrive(Task(0, 9, TaskKind.BACKWARD, 1), (late.task,))
    assert firsts(case) == ["1", "0"]
    case.predictor.arrive(late.task, ())
    late.missing.discard(CHAIN)
    late.is_queued = True
    assert case.named().startswith("1.5 1.4 1.3 1.2 1.1 0.5"), "it is here: its layers come whole"


def test_on_the_last_stage_a_forwards_own_backward_comes_next():
    case = Situation(stage=2)
    running = case.queued()
    case.queued()
    case.run(running)
    assert case.named() == "0.6 1.6"
    case.subnets[0].forward.todo.clear()
    assert case.named() == "0.6 1.6", "for its backward"
    case.running = case.subnets[0].backwards[0]
    case.running.missing.discard(CHAIN)
    assert case.named() == "0.6 1.6"


def test_versions_that_do_not_exist_here_are_not_named():
    case = Situation()
    waiting = case.admit()
    waiting.forward.missing.discard(CHAIN)
    waiting.forward.unclear |= {1, 4}
    assert case.named() == "0.2 0.3 0.5"


def test_a_layer_may_be_used_until_every_subnet_ran_its_last_block_on_it():
    case = Situation()
    subnet, _ = case.admit(), case.admit()
    case.predictor.admit(subnet)  # as another subnet of the same layers would be
    shared, other = subnet.tickets[1].layer, subnet.tickets[2].layer
    ahead = case.predictor.forecast((), case.subnets, None)
    case.predictor.used(shared)
    assert ahead.may_use(shared) and ahead.may_use(other)
    case.predictor.used(shared)
    assert not ahead.may_use(shared) and ahead.may_use(other)
