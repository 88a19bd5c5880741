"""Which labels are in doubt when a teacher turns out to be wrong.

A teacher passed its exam and made labels 0 to 9. Label 4 was audited, and another teacher agreed.
Then label 10 is audited, and the two do not agree. Labels 5 to 9 may be wrong, as nobody looked at
them. 0 to 4 are right: a teacher that is wrong stays wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

_KEPT = 4096
"""Labels of a teacher that are known one by one; of older ones the lowest."""


@dataclass(slots=True)
class _Made:
    """What one teacher made and nobody has looked at, in the order in which it was made."""

    count: int = 0
    places: dict[int, int] = field(default_factory=dict)
    """Of answers that are not delivered, by batch: how many came before."""
    labels: deque[tuple[int, int]] = field(default_factory=deque)
    """Of those that are: how many came before, and the batch."""
    older: int | None = None
    """The lowest batch of those before ``labels``."""

    def agreed(self, place: int) -> None:
        """The answer with so many before it was right, so those before it are."""
        if not self.labels or place >= self.labels[0][0]:
            self.older = None
        self.labels = deque(each for each in self.labels if each[0] > place)

    def delivered(self, place: int, batch: int) -> None:
        self.labels.append((place, batch))
        if len(self.labels) > _KEPT:
            _, lowest = self.labels.popleft()
            self.older = lowest if self.older is None else min(self.older, lowest)

    @property
    def lowest(self) -> int | None:
        found = [batch for _, batch in self.labels]
        return min(found if self.older is None else [*found, self.older], default=None)


class Doubt:
    """The labels that each teacher made since another one agreed with it."""

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}

    def answered(self, batch: int, teacher: str) -> None:
        """A teacher has made a label."""
        made = self._made.setdefault(teacher, _Made())
        made.places[batch] = made.count
        made.count += 1

    def dropped(self, batch: int, teacher: str) -> None:
        """It was not needed."""
        if teacher in self._made:
            self._made[teacher].places.pop(batch, None)

    def delivered(self, batch: int, makers: Collection[str]) -> None:
        """A label was handed to the student.

        Args:
            batch: its number.
            makers: who made it; of several, all with the same bits.
        """
        for name in makers:
            made = self._made[name]
            place = made.places.pop(batch)
            if len(makers) > 1:
                made.agreed(place)
            else:
                made.delivered(place, batch)

    def since(self, teacher: str, otherwise: int) -> int:
        """The lowest batch of a teacher's labels that nobody has looked at."""
        made = self._made.get(teacher)
        return otherwise if made is None or made.lowest is None else made.lowest
