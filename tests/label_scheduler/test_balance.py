"""Even shares of teachers, and few moves."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from naspipe.label_scheduler.balance import balanced


def names(letter: str, count: int) -> list[str]:
    return [f"{letter}{number:02}" for number in range(count)]


def sizes(serving) -> list[int]:
    return [len(teachers) for _, teachers in sorted(serving.items())]


def test_shares_are_even_and_nobody_is_idle() -> None:
    assert balanced(["b", "a"], ["2", "0", "1"]) == {"a": ("0", "1"), "b": ("2",)}
    assert sizes(balanced(names("s", 3), names("t", 97))) == [33, 32, 32]


def test_with_few_teachers_each_has_several_students() -> None:
    assert balanced("cab", "01") == {"a": ("0",), "b": ("0",), "c": ("1",)}
    serving = balanced(names("s", 97), names("t", 3))
    served = [sum(teachers == (name,) for teachers in serving.values()) for name in names("t", 3)]
    assert served == [33, 32, 32]


def test_nobody_and_nothing() -> None:
    assert balanced([], ["0"]) == {} and balanced(["a"], []) == {"a": ()}


def test_one_that_leaves_moves_at_most_one() -> None:
    before = balanced("abc", "01234567")
    assert before == {"a": ("0", "1", "2"), "b": ("3", "4", "5"), "c": ("6", "7")}
    assert balanced("abc", "0123456", before) == {
        "a": ("0", "1", "2"), "b": ("3", "4"), "c": ("5", "6"),
    }  # fmt: skip
    assert balanced("abc", "0123457", before) == {
        "a": ("0", "1", "2"), "b": ("3", "4"), "c": ("5", "7"),
    }  # fmt: skip


def test_one_that_joins_moves_nobody() -> None:
    before = {"a": ("1", "2"), "b": ("3",)}
    assert balanced("ab", "0123", before) == {"a": ("1", "2"), "b": ("0", "3")}


def test_who_has_the_odd_one_keeps_it() -> None:
    before = {"a": ("0",), "b": ("1", "2")}
    assert balanced("ab", "012", before) == before


def moved(before, after, teachers) -> int:
    """Teachers that have another student than before, of those that had one."""
    then = {teacher: student for student, some in before.items() for teacher in some}
    now = {teacher: student for student, some in after.items() for teacher in some}
    return sum(then[each] != now[each] for each in teachers if each in then)


@given(st.integers(1, 6), st.integers(1, 6), st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_any_change(before_students, students, before_teachers, teachers) -> None:
    old = balanced(names("s", before_students), [str(t) for t in before_teachers])
    given_names = [str(t) for t in teachers]
    new = balanced(names("s", students), given_names, old)
    assert new == balanced(names("s", students)[::-1], given_names[::-1], old)
    every = [teacher for some in new.values() for teacher in some]
    if len(given_names) >= students:
        assert sorted(every) == sorted(given_names)
        assert max(sizes(new)) - min(sizes(new)) <= 1
        if len(before_teachers) >= before_students:
            assert moved(old, new, given_names) == fewest(old, names("s", students), given_names)
    elif given_names:
        served = [every.count(teacher) for teacher in given_names]
        assert set(sizes(new)) == {1} and max(served) - min(served) <= 1


def fewest(before, students, teachers) -> int:
    """By trying who has one more."""
    have = [len(set(before.get(student, ())) & set(teachers)) for student in students]
    held = sum(len(set(some) & set(teachers)) for some in before.values())
    least, odd = divmod(len(teachers), len(students))
    return held - max(
        sum(min(count, least + (place in more)) for place, count in enumerate(have))
        for more in combinations(range(len(students)), odd)
    )
