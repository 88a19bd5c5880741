"""The named students."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.students import narrow_encoder, proxyless, separable
from search_spaces.students.kind import StudentKind

KINDS: Mapping[str, StudentKind] = {
    "proxyless": proxyless.KIND,
    "separable": separable.KIND,
    "narrow-encoder": narrow_encoder.KIND,
}
