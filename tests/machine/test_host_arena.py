"""Pieces of host memory are aligned, never overlap, and end at the limit."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from naspipe.machine.host_arena import ALIGNMENT, HostArena, HostMemoryError

SLAB = 4096


@given(st.lists(st.integers(0, 3 * SLAB), max_size=30))
def test_pieces_are_aligned_and_never_overlap(sizes):
    arena = HostArena(pin=False, limit_bytes=None, slab_bytes=SLAB)
    pieces = [arena.allocate(size) for size in sizes]
    for number, piece in enumerate(pieces):
        assert piece.dtype == torch.uint8
        assert piece.data_ptr() % ALIGNMENT == 0
        piece.fill_(number)
    assert [piece.numel() for piece in pieces] == sizes
    for number, piece in enumerate(pieces):
        assert bool((piece == number).all())
    assert arena.used_bytes == sum(-(-size // 512) * 512 for size in sizes)
    assert arena.used_bytes <= arena.reserved_bytes


def test_slabs_are_filled_before_another_is_taken():
    arena = HostArena(pin=False, limit_bytes=None, slab_bytes=SLAB)
    first = arena.allocate(3000)
    assert arena.reserved_bytes == SLAB
    big = arena.allocate(SLAB + 1)  # a slab of its own, and no more than it needs
    assert arena.reserved_bytes == 2 * SLAB + 512
    last = arena.allocate(1024)
    assert arena.reserved_bytes == 2 * SLAB + 512
    assert last.data_ptr() == first.data_ptr() + 3072
    assert big.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()


STEPS = st.one_of(
    st.tuples(st.just("allocate"), st.sampled_from([0, 500, 512, 1024, SLAB + 1])),
    st.tuples(st.just("give back"), st.integers(0, 99)),
    st.tuples(st.just("sent"), st.integers(0, 99)),
)


@given(st.lists(STEPS, max_size=40))
def test_what_is_given_back_is_not_handed_out_before_it_is_free(steps):
    arena = HostArena(pin=False, limit_bytes=None, slab_bytes=SLAB)
    used, sending = [], []

    def mark(piece, number):
        piece.fill_(number)
        return piece, number, [False]

    for number, (what, value) in enumerate(steps):
        if what == "allocate":
            used.append(mark(arena.allocate(value), number))
        elif what == "give back" and used:
            sending.append(used.pop(value % len(used)))
            piece, _, is_sent = sending[-1]
            arena.give_back(piece, lambda is_sent=is_sent: is_sent[0])
        elif what == "sent" and sending:
            sending.pop(value % len(sending))[2][0] = True
        for piece, marked, _ in used + sending:
            assert bool((piece == marked).all())


def test_memory_that_comes_and_goes_stays_the_same():
    arena = HostArena(pin=False, limit_bytes=3 * 1024, slab_bytes=SLAB)
    kept = arena.allocate(1024)
    for _ in range(50):
        piece = arena.allocate(1000)
        arena.give_back(piece, lambda: True)
    assert arena.reserved_bytes == 3 * 1024
    first = arena.allocate(1024)
    assert first.data_ptr() == piece.data_ptr() != kept.data_ptr()
    assert arena.used_bytes == 2048


SIZES = st.lists(st.integers(1, 8 * SLAB), min_size=1, max_size=20)


@given(SIZES, st.randoms(use_true_random=False))
def test_what_is_free_again_is_one_piece_again(sizes, draw):
    """Whatever the order in which pieces are given back."""
    arena = HostArena(pin=False, limit_bytes=None, slab_bytes=8 * SLAB)
    pieces = [arena.allocate(size) for size in sizes]
    reserved = arena.reserved_bytes
    draw.shuffle(pieces)
    for piece in pieces:
        arena.give_back(piece, lambda: True)
    assert arena.used_bytes == 0
    for _ in range(reserved // (8 * SLAB)):
        arena.allocate(8 * SLAB)
    assert arena.reserved_bytes == reserved


def test_layers_of_many_sizes_that_come_and_go_take_little_more_than_they_have():
    """Where a free piece served pieces of its size only, this would take 1.9 times as much."""
    draw = random.Random(1)
    arena = HostArena(pin=False, limit_bytes=None, slab_bytes=16 * SLAB)
    there = [arena.allocate(512 * draw.randint(4, 40)) for _ in range(200)]
    most = arena.used_bytes
    for _ in range(3000):
        arena.give_back(there.pop(draw.randrange(len(there))), lambda: True)
        there.append(arena.allocate(512 * draw.randint(4, 40)))
        most = max(most, arena.used_bytes)
    assert arena.reserved_bytes <= 1.15 * most


def test_nothing_takes_nothing():
    arena = HostArena(pin=False, limit_bytes=0)
    assert arena.allocate(0).numel() == 0
    assert arena.reserved_bytes == 0


def test_the_limit():
    arena = HostArena(pin=False, limit_bytes=2048)
    arena.allocate(1000)
    assert arena.reserved_bytes == 2048
    with pytest.raises(HostMemoryError) as raised:
        arena.allocate(1025)
    assert str(raised.value) == (
        "host memory for layers: the limit is 2048 bytes, 1024 are used and 1536 more are needed; "
        "raise the limit, or choose a smaller scale or an optimizer with less state"
    )
    assert arena.used_bytes == 1024
    arena.allocate(1024)
    assert arena.used_bytes == 2048


def test_a_machine_without_memory():
    arena = HostArena(pin=False, limit_bytes=None)
    with pytest.raises(HostMemoryError, match="0 bytes are used and the machine refused") as raised:
        arena.allocate(1 << 60)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("has_cuda", [False, True])
def test_memory_that_cannot_be_pinned_warns_once(monkeypatch, has_cuda):
    make = torch.empty

    def refuse(*sizes, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("out of lockable memory")
        return make(*sizes, **options)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch, "empty", refuse)
    arena = HostArena(pin=True, limit_bytes=None, slab_bytes=SLAB)
    cause = "out of lockable memory" if has_cuda else "no CUDA device was found"
    with pytest.warns(UserWarning, match=f"not pinned: .*{cause}") as caught:
        pieces = [arena.allocate(SLAB)]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pieces.append(arena.allocate(SLAB))
    assert [piece.numel() for piece in pieces] == [SLAB, SLAB]


def test_pinned_slabs_use_what_torch_rounds_up_to(monkeypatch):
    make, asked = torch.empty, []

    def pinned(*sizes, pin_memory=False, **options):
        asked.append((sizes, pin_memory))
        return make(*sizes, **options)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", pinned)
    arena = HostArena(pin=True, limit_bytes=None, slab_bytes=SLAB)
    arena.allocate(SLAB + 512)
    arena.allocate(1024)  # fits behind it
    assert asked == [((2 * SLAB,), True)]
