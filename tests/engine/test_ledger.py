"""The ledger: what it counts, and every step that it refuses."""

from __future__ import annotations

import pytest

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId
from naspipe.engine.ledger import LayerState, Ledger

A, B, EMPTY, SHARED = (LayerId(0, block, 0) for block in (1, 2, 3, 4))
SIZES = {A: 40, B: 70, EMPTY: 0, SHARED: 10}


def ledger(*resident, budget=100):
    made = Ledger(budget, SIZES.__getitem__, lambda layer: layer == SHARED)
    for layer in resident:
        made.load(layer)
        made.loaded(layer)
    return made


def dirty(*resident):
    made = ledger(*resident)
    for layer in resident:
        made.pin(layer)
        made.unpin(layer, wrote=True)
    return made


def test_the_way_of_a_layer():
    book = ledger()
    assert book.state(A) is LayerState.ABSENT and book.free_bytes == 100
    book.load(A)
    assert book.state(A) is LayerState.LOADING and not book.is_resident(A)
    assert (book.used_bytes, book.evictable_bytes, book.num_loading) == (40, 0, 1)
    book.loaded(A)
    assert book.is_resident(A) and book.resident == (A,)
    assert (book.used_bytes, book.evictable_bytes, book.num_loading) == (40, 40, 0)
    book.pin(A)
    book.pin(A)
    book.unpin(A, wrote=True)
    assert (book.evictable_bytes, book.num_pinned, book.unsaved()) == (0, 1, [])
    book.unpin(A, wrote=False)
    assert (book.evictable_bytes, book.num_pinned) == (0, 0)
    assert [row.layer for row in book.unsaved()] == [A] and book.needs_save(A)
    book.save(A)
    assert book.unsaved() == [] and book.needs_save(A) and book.num_saving == 1
    book.saved(A)
    assert not book.needs_save(A) and book.evictable_bytes == 40 and book.num_saving == 0
    book.evict(A)
    assert book.state(A) is LayerState.ABSENT and book.resident == ()
    assert (book.used_bytes, book.evictable_bytes, book.peak_bytes) == (0, 0, 40)


def test_a_layer_written_during_its_save_is_dirty_after_it():
    book = dirty(A)
    book.save(A)
    book.pin(A)
    book.unpin(A, wrote=True)
    book.saved(A)
    assert [row.layer for row in book.unsaved()] == [A] and book.needs_save(A)


def test_room_that_grows_is_noticed():
    book = ledger(A)
    seen = book.gains
    book.pin(A)
    assert book.gains == seen
    book.unpin(A, wrote=False)
    assert book.gains > seen
    seen = book.gains
    book.evict(A)
    assert book.gains > seen


def test_uses_are_ordered():
    book = ledger(A, B, budget=110)

    def oldest():
        return [row.layer for row in book.evictable()]

    assert oldest() == [A, B]
    book.pin(A)
    book.unpin(A, wrote=False)
    assert oldest() == [B, A]


def test_a_layer_that_was_saved_late_is_as_old_as_its_last_use():
    book = ledger(A, B, budget=110)
    book.pin(A)
    book.unpin(A, wrote=True)
    book.save(A)
    book.pin(B)
    book.unpin(B, wrote=False)
    book.saved(A)
    assert [row.layer for row in book.evictable()] == [A, B]


def test_a_permanent_layer_is_neither_saved_nor_evicted():
    book = dirty(SHARED)
    assert book.unsaved() == [] == list(book.evictable()) and book.evictable_bytes == 0
    with pytest.raises(InvariantError, match="not permanent, found resident, dirty, permanent"):
        book.evict(SHARED)
    with pytest.raises(InvariantError, match="to be saved"):
        book.save(SHARED)


def test_a_layer_of_no_bytes_is_always_there():
    book = ledger()
    assert book.is_resident(EMPTY) and book.is_empty(EMPTY) and not book.is_empty(A)
    book.pin(EMPTY)
    book.unpin(EMPTY, wrote=True)
    assert not book.needs_save(EMPTY) and book.unsaved() == [] == list(book.evictable())
    assert book.resident == () and book.used_bytes == 0
    with pytest.raises(InvariantError):
        book.load(EMPTY)


def saving():
    book = dirty(A)
    book.save(A)
    return book


def pinned():
    book = ledger(A)
    book.pin(A)
    return book


def loading():
    book = ledger()
    book.load(A)
    return book


REFUSED = [
    (lambda: ledger(A), lambda book: book.load(B), "70 bytes cannot be loaded: .* found 40 in use"),
    (lambda: ledger(A), lambda book: book.load(A), "to be loaded: expected absent, found resident"),
    (loading, lambda book: book.load(A), "to be loaded: expected absent, found loading"),
    (ledger, lambda book: book.loaded(A), "told as loaded: expected loading, found absent"),
    (lambda: ledger(A), lambda book: book.loaded(A), "told as loaded"),
    (ledger, lambda book: book.pin(A), "to be pinned: expected resident, found absent"),
    (loading, lambda book: book.pin(A), "to be pinned: expected resident, found loading"),
    (lambda: ledger(A), lambda book: book.unpin(A, wrote=False), "to be released: .*pinned, found"),
    (lambda: ledger(A), lambda book: book.unpin(A, wrote=True), "to be written: .*pinned, found"),
    (ledger, lambda book: book.unpin(A, wrote=True), "to be written: .* found absent"),
    (lambda: ledger(A), lambda book: book.save(A), "to be saved: .*dirty.* found resident$"),
    (ledger, lambda book: book.save(A), "to be saved: .* found absent"),
    (saving, lambda book: book.save(A), "to be saved: .* found resident, being saved"),
    (ledger, lambda book: book.saved(A), "told as saved: expected being saved, found absent"),
    (lambda: dirty(A), lambda book: book.saved(A), "told as saved"),
    (ledger, lambda book: book.evict(A), "to be evicted: .* found absent"),
    (loading, lambda book: book.evict(A), "to be evicted: .* found loading"),
    (pinned, lambda book: book.evict(A), "to be evicted: .* found resident, 1 pins"),
    (lambda: dirty(A), lambda book: book.evict(A), "to be evicted: .* found resident, dirty"),
    (saving, lambda book: book.evict(A), "to be evicted: .* found resident, being saved"),
]


@pytest.mark.parametrize(("make", "step", "message"), REFUSED)
def test_what_is_refused(make, step, message):
    book = make()
    before = (book.used_bytes, book.evictable_bytes, book.resident)
    with pytest.raises(InvariantError, match=rf"^layer 0:[12]\.0 .*{message}"):
        step(book)
    assert (book.used_bytes, book.evictable_bytes, book.resident) == before


def test_a_pinned_dirty_layer_is_not_saved():
    book = dirty(A)
    book.pin(A)
    with pytest.raises(InvariantError, match="not in use, found resident, 1 pins, dirty"):
        book.save(A)
