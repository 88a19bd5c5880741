"""A ``Dataset`` as batches by number: order and draws follow from the key, in any process."""

from __future__ import annotations

import hashlib
import os
import random
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

import naspipe as npp
from naspipe.data.images import keyed_random
from tests.data.items import Drawn, Names, Trouble


def key(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def start(text):
    """The public rule, written out a second time."""
    torch.manual_seed(key(text))
    np.random.seed(key(text) % 2**32)
    random.seed(key(text))


def same(one, other):
    assert one.keys() == other.keys()
    for name, field in one.items():
        assert field.dtype == other[name].dtype and torch.equal(field, other[name]), name


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_epoch_is_a_permutation_that_follows_from_its_number():
    data = npp.from_dataset(Drawn(10), 4)
    assert data.batches_per_epoch == 3 and len(data) == 10
    for epoch in (0, 1, 7):
        rows = [data.rows(5, 3 * epoch + place) for place in range(3)]
        assert list(map(len, rows)) == [4, 4, 2]
        assert [*rows[0], *rows[1], *rows[2]] == keyed_random(5, epoch).permutation(10).tolist()
    assert data.rows(5, 4) != data.rows(6, 4)
    in_order = npp.from_dataset(Drawn(10), 4, shuffle=False, drop_last=True)
    assert [in_order.rows(5, y) for y in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_a_batch_is_what_a_loop_under_the_public_rule_makes():
    dataset = Drawn()
    data = npp.from_dataset(dataset, 4)
    items = []
    for row in data.rows(3, 9):
        start(f"3/item/9/{row}")
        items.append(dataset[row])
    expected = dict(zip(("input", "target"), default_collate(items), strict=True))
    same(data(3, 9), expected)
    same(data(3, 9), data(3, 9))
    assert not torch.equal(data(3, 9)["input"], data(4, 9)["input"])


def test_the_global_generators_go_on_where_they_stood():
    data = npp.from_dataset(Drawn(), 4)
    start("anything")
    expected = torch.rand(1), np.random.rand(), random.random()
    start("anything")
    data(1, 2)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_a_transform_may_draw_from_a_generator_of_its_own():
    plain = TensorDataset(torch.zeros(8, 2), torch.arange(8))

    def shift(item, generator):
        return item[0] + torch.rand(2, generator=generator), item[1]

    class Shift(torch.nn.Module):
        def forward(self, item):
            return item[0] + torch.rand(2), item[1]

    by_name = npp.from_dataset(plain, 4, transform=shift)
    by_globals = npp.from_dataset(plain, 4, transform=Shift())
    same(by_name(0, 1), by_globals(0, 1))
    place = by_name.rows(0, 1).index(row := by_name.rows(0, 1)[2])
    draw = torch.Generator().manual_seed(key(f"0/item/1/{row}"))
    assert torch.equal(by_name(0, 1)["input"][place], torch.rand(2, generator=draw))
    assert "shift" in by_name.record["transform"]


def test_a_collate_fn_draws_by_the_number_of_the_batch():
    def mixed(items):
        pixels, targets = default_collate(items)
        share = torch.rand(())
        order = torch.randperm(len(targets))
        return {"input": share * pixels + (1 - share) * pixels[order], "target": targets}

    data = npp.from_dataset(Drawn(), 4, collate_fn=mixed)
    same(data(1, 6), data(1, 6))
    assert not torch.equal(data(1, 6)["input"], npp.from_dataset(Drawn(), 4)(1, 6)["input"])


ORDER = [0, 0, 1, 2, 3, 5, 4, 6, 6, 6, 7, 8, 30, 31, 32, 33, 0, 1, 2, 9, 13, 17, 21]
"""Numbers as stages ask for them: twice, out of order, with jumps."""


@pytest.mark.parametrize("dataset", [Drawn, Names])
def test_processes_make_the_same_batches(dataset):
    here, ahead = npp.from_dataset(dataset(), 4), npp.from_dataset(dataset(), 4, workers=2)
    try:
        for number in ORDER:
            same(ahead(3, number), here(3, number))
            same(ahead(4, number), here(4, number))
        assert len(ahead._pool._processes) == 2
        assert sum(map(len, ahead._pool._asked)) <= 4 and len(ahead._pool._here) < 64
    finally:
        ahead.close()


def test_processes_end_with_close_and_come_again():
    data = npp.from_dataset(Drawn(), 4, workers=2)
    assert [data(0, y).keys() for y in (0, 0)] and data._pool is None, "two looks start nothing"
    for number in range(3):
        data(0, number)
    first = [process.pid for process in data._pool._processes]
    data.close()
    assert not any(map(alive, first)) and data._pool is None
    for number in range(3):
        data(0, number)
    again = [process.pid for process in data._pool._processes]
    assert set(again).isdisjoint(first)
    data.close()


def test_processes_end_with_the_one_that_forked_them():
    """Also when it is killed, and another process was forked from it meanwhile."""
    receive, send = os.pipe()
    if not (parent := os.fork()):
        data = npp.from_dataset(Drawn(), 4, workers=2)
        for number in range(4):
            data(0, number)
        if not (other := os.fork()):
            time.sleep(60)
            os._exit(0)
        pids = [*(process.pid for process in data._pool._processes), other]
        os.write(send, " ".join(map(str, pids)).encode())
        os.kill(os.getpid(), 9)
    os.waitpid(parent, 0)
    *loaders, other = map(int, os.read(receive, 100).split())
    end = time.monotonic() + 20
    while any(map(alive, loaders)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(alive, loaders)) and alive(other)
    os.kill(other, 9)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raises", npp.NaspipeError, r"failed in batch 5\n(.*\n)*ValueError: no such file"),
        ("dies", npp.NaspipeError, "expected batch .*, which was killed by signal 9"),
        ("hangs", npp.NaspipeError, "expected batch .* within 0.5 s, found none"),
    ],
)
def test_what_goes_wrong_in_a_process_is_said_here(how, error, message):
    at = npp.from_dataset(Drawn(), 4).rows(0, 5)[1]
    data = npp.from_dataset(Trouble(how, at), 4, workers=2, timeout_seconds=0.5)
    try:
        with pytest.raises(error, match=message):
            for number in range(7):
                data(0, number)
    finally:
        data.close()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def reject_three():
    three = TensorDataset(torch.ones(4, 2), torch.ones(4), torch.ones(4))
    return npp.from_dataset(three, 2)(0, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: npp.from_dataset(Stream(), 4), "expected a map-style Dataset .*found Stream; an"),
        (lambda: npp.from_dataset(DataLoader(Drawn()), 4), r"from_dataset\(loader.dataset, batch_"),
        (lambda: npp.from_dataset([], 4), "expected items, found an empty list"),
        (lambda: npp.from_dataset(Drawn(), 0), "expected batch_size as .*1 or more, found 0"),
        (lambda: npp.from_dataset(Drawn(), 4, workers=-1), "expected workers as .*0 or more"),
        (lambda: npp.from_dataset(Drawn(), 30, drop_last=True), "batch_size of at most 29"),
        (lambda: npp.from_dataset(Drawn(), 4, timeout_seconds=0), "timeout_seconds above 0"),
        (reject_three, r"batches of 2 parts, called input, target, found 3 parts; name them"),
    ],
)
def test_what_cannot_be_batched_is_one_line(make, message):
    with pytest.raises(npp.ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
