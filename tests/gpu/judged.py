"""Cases that judge subnets: a validation beside the training, and a search after it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import naspipe as npp
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, oracle_of
from tests.gpu.trained import SEED, Case
from tests.search.plain import held_out, judge

CALIBRATE, VALIDATE = 3, 2
"""Batches that statistics are taken from, and that are judged by."""

EVERY = {
    "validate_every": 8, "validate_subnets": "2", "validate_batches": VALIDATE,
    "validate_calibrate": CALIBRATE, "window": 4,
}  # fmt: skip


def batches(data):
    """To calibrate with, and to judge by."""
    held = held_out(data)
    return [data(SEED, n) for n in range(CALIBRATE)], [held(SEED, n) for n in range(VALIDATE)]


@dataclass(frozen=True, kw_only=True)
class Validated:
    """A run that is validated on the way: each checkpoint's figures are the plain loop's."""

    case: Case
    stages: int

    def train(self, device, place):
        """With a validation at 8, at 16 and at the end."""
        case = self.case
        return npp.train(
            case.space, case.data, case.loss, steps=20, seed=SEED, lr=case.lr,
            optimizer_options=case.options, stages=self.stages, run_dir=place / "run",
            execution={**EVERY, "device": device}, held_out=held_out(case.data),
        )  # fmt: skip

    def compare(self, run, device):
        """Losses, top-1 and top-5 of every subnet at every cut; and the training."""
        case, space = self.case, self.case.space
        loop = oracle_of(space, SEED, "SGD", case.lr, case.options, device=device)
        found = {each.sequence_id: each.subnets for each in run.validations}
        assert sorted(found) == [8, 16, 20]
        for y, choices in enumerate(read_stream(run.directory.stream), 1):
            loop.step(y - 1, space.chain(choices), case.data(SEED, y - 1), case.loss)
            for subnet in found.get(y, ()):
                chain = space.chain(subnet.choices)
                plain = judge(copy.deepcopy(loop), chain, *batches(case.data), case.loss)
                scores = tuple(subnet.scores.values())
                assert scores == plain, f"at {y}: {scores}, expected {plain}"
        assert_same_bits(run, loop)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A search on several numbers of stages: all find the scores of a plain evaluation."""

    case: Case
    stages: tuple[int, ...] = (1, 2)

    def train(self, device, place):
        """The run, and a search for each number of stages."""
        (run,) = self.case.train(device, place)
        options = {"population": 4, "tournament": 2}
        found = [
            npp.search_subnets(
                run, self.case.data, self.case.loss, held_out=held_out(self.case.data), budget=10,
                calibrate=CALIBRATE, validate=VALIDATE, delay=3, stages=number, options=options,
                name=f"on-{number}", execution={"device": device},
            )
            for number in self.stages
        ]  # fmt: skip
        return run, found

    def compare(self, made, device):
        """The same candidates with the same scores, which are those of plain forwards."""
        run, found = made
        lines = {each.path.joinpath("candidates.jsonl").read_bytes() for each in found}
        assert len(lines) == 1, "the searches differ"
        loop = self.case.plain(run, device)
        for candidate in found[0].candidates:
            chain = run.space.chain(candidate.choices)
            plain = judge(loop, chain, *batches(self.case.data), self.case.loss)
            scores = candidate.scores[:3]
            assert scores == plain, f"{candidate.choices}: {scores}, expected {plain}"


def judgements():
    """With batch normalisation, whose statistics are taken anew."""
    maps = {"space": spaces.maps(), "data": spaces.images}
    memory = {"space": spaces.memory(), "data": spaces.sequences}
    return {
        "validation, mixed": Validated(case=Case(), stages=2),
        "validation, maps": Validated(case=Case(**maps), stages=1),
        "search, mixed": Searched(case=Case(stages=(2,))),
        "search, maps": Searched(case=Case(**maps, stages=(1,))),
        "search, memory": Searched(case=Case(**memory, stages=(1,)), stages=(2,)),
    }
