"""What differs between the access logs of two runs, read a few layers at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from naspipe.config.ids import LayerId
from naspipe.trace.access.labels import SpaceLabels
from naspipe.trace.access.log import RunLog
from naspipe.trace.access.order import groups_of_layers
from naspipe.trace.access.recorded_steps import SharedSpan
from naspipe.trace.access.stored import Wanted
from naspipe.trace.reading.agreement import unequal_layers
from naspipe.trace.reading.differences import Difference, access_differences


def log_differences(
    expected: RunLog,
    found: RunLog,
    labels: SpaceLabels,
    passes: int = 1,
    spans: Iterable[SharedSpan] = (SharedSpan(0, None, 1),),
) -> Iterator[Difference]:
    """Per layer the first difference of each kind, as :func:`access_differences` finds them.

    Layers that differ are found first, and only those are read.

    Only the steps in ``spans`` that both logs record are compared.
    """
    counts: Counter[LayerId] = Counter(expected.layers)
    counts.update(found.layers)
    for span in spans:
        if not span.every:
            continue
        wanted = Wanted(
            first=span.first, end=span.end, backwards=False, every=span.every, passes=passes
        )
        unequal = unequal_layers(expected, found, labels.is_exact, wanted)
        for group in groups_of_layers({layer: counts[layer] for layer in unequal}):
            own = wanted._replace(layers=group)
            sides = expected.columns(own), found.columns(own)
            yield from access_differences(*sides, labels, passes)
