"""The registry of data sets: the meaning of each name, and how it is prepared and opened.

Other packages add data sets with an entry point in the group ``naspipe.datasets`` that refers to an
iterable of :class:`Entry`. The data sets of `search_spaces.debian` are found without one, because
that package is part of naspipe.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.data.cache import (
    Entry,
    PreparationProgress,
    default_root,
    open_prepared,
    publish,
)
from naspipe.data.images import ImageData, open_digits, open_image_folder
from naspipe.data.text import PREFIX as _MASKED
from naspipe.data.text import MaskedWords, TranslationData
from naspipe.data.views import Augment, Views

SPLITS = ("train", "valid", "test")
DEFAULT_MAX_TOKENS = 4096
DEFAULT_BATCH_SIZE = 64
DEFAULT_BATCHES = 4

VIEWS = "views:"
"""Prefix of data with two views of each image, followed by the name of image data."""

ENTRY_POINTS = "naspipe.datasets"

_BUILT_IN = (
    Entry("digits", "1,797 grey 8x8 images of digits, 10 classes, from scikit-learn", "image"),
    Entry(
        "fairseq:DIR", "a translation data set that fairseq-preprocess wrote to DIR", "translation"
    ),
    Entry(
        "image-folder:DIR",
        "images as DIR/train/CLASS/NAME.jpg (or .png), needs Pillow",
        "image",
    ),
    Entry(
        f"{_MASKED}NAME",
        "sentences of NAME, prepared translation data, with words masked",
        "masked words",
    ),
    Entry(f"{VIEWS}NAME", "images of NAME, each step two views of every one", "image views"),
)


@functools.cache
def _own() -> dict[str, Entry]:
    """The data sets that come with naspipe by name, in the order in which they are listed."""
    found: dict[str, Entry] = {}
    # By name, because naspipe.data must not import the search spaces, which are above it.
    if importlib.util.find_spec("search_spaces") is not None:
        _add(found, importlib.import_module("search_spaces.debian").ENTRIES, "search_spaces.debian")
    _add(found, _BUILT_IN, "naspipe")
    return found


@functools.cache
def _table() -> dict[str, Entry]:
    """All data sets by name, including those of other packages, which are imported here.

    Raises:
        ConfigError: if a package cannot be loaded, or offers something else.
    """
    found = dict(_own())
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        origin = f"entry point {point.value} of {ENTRY_POINTS}"
        try:
            offered = point.load()
        except Exception as error:
            raise ConfigError(
                f"{origin}: expected data sets, found {type(error).__name__}: {error}; repair or "
                f"remove the package {point.dist.name if point.dist else point.name}"
            ) from error
        _add(found, offered, origin)
    return found


def _add(found: dict[str, Entry], entries: Iterable[Any], origin: str) -> None:
    for entry in entries:
        if not isinstance(entry, Entry):
            raise ConfigError(f"{origin}: expected data sets (Entry), found {entry!r:.80}")
        if entry.name in found:
            raise ConfigError(f"{origin}: there is a data set {entry.name!r} already")
        found[entry.name] = entry


def entries() -> list[Entry]:
    """Return all data sets; in names like ``PREFIX:DIR`` users choose the part after the prefix."""
    return list(_table().values())


def names_of_kind(kind: str) -> list[str]:
    return [entry.name for entry in entries() if entry.kind == kind]


def find_entry(name: str) -> Entry:
    """Return the data set of that name, or raise `ConfigError`."""
    return _find(name)[0]


def open_data(
    name: str,
    *,
    root: Path | None = None,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    split: str = "train",
    required_multiple: int = 1,
    image_size: int = 224,
    batches: int | None = None,
) -> TranslationData | MaskedWords | ImageData | Views:
    """Open one split of a data set, after verifying the files of prepared data.

    ``max_tokens`` (per batch) applies to text, ``batch_size`` (images) to images, ``image_size``
    (pixels) to image folders, ``batches`` (per step) to views. Views are for training: the other
    splits return the images unchanged.
    """
    if name.startswith(VIEWS) and _find(name):
        inner = open_data(
            name.removeprefix(VIEWS),
            root=root,
            max_tokens=max_tokens,
            batch_size=batch_size,
            split=split,
            image_size=image_size,
        )
        if split != "train":
            return inner
        views = Views(inner, Augment(), views=2, batches=batches or DEFAULT_BATCHES)
        views.record["name"] = VIEWS + views.record["name"]
        return views
    entry, rest = _find(name)
    if split not in SPLITS:
        raise ConfigError(f"split: expected one of {', '.join(SPLITS)}, found {split!r}")
    is_text = entry.kind != "image"
    wrong = ("batch_size", batch_size) if is_text else ("max_tokens", max_tokens)
    if wrong[1] is not None:
        right = "max_tokens" if is_text else "batch_size"
        raise ConfigError(
            f"data set '{name}' takes {right}, not {wrong[0]}; where a recipe says {wrong[0]}, "
            f"write one of your own with {right} (docs/recipes.md)"
        )
    is_masked = name.startswith(_MASKED)
    if is_masked:
        name = rest
        entry, rest = _find(name)
    record = None
    if entry.build is not None:
        place, full = open_prepared(root or default_root(), name, entry.recipe)
        record = {key: full[key] for key in ("name", "source", "version", "recipe", "counts")}
        record["sha256"] = {path: file["sha256"] for path, file in full["files"].items()}
    else:
        place = Path(rest).expanduser()
    if is_text:
        tokens = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
        sentences = TranslationData(place, tokens, split, required_multiple, record=record)
        return MaskedWords(sentences, split) if is_masked else sentences
    images = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
    if entry.open is not None:
        images_of: ImageData = entry.open(place, images, split, record or {"name": name})
        return images_of
    if entry.name == "digits":
        return open_digits(images, split)
    return open_image_folder(place, images, split, image_size)


def prepare(
    name: str,
    *,
    root: Path | None = None,
    source: Path | None = None,
    force: bool = False,
    progress: PreparationProgress | None = None,
) -> Path | None:
    """Prepare ``name`` unless it is already prepared, verify it and return its directory.

    ``source`` replaces the download (for Debian packages, see `search_spaces.debian.packages`).
    Returns None for a data set that needs no preparation. Preparing masked words or views prepares
    the underlying data.
    """
    name, entry = _needed(name)
    if entry.build is None:
        if source is not None or force:
            raise ConfigError(
                f"data set '{name}' needs no preparation: leave --from and --force out"
            )
        return None
    build, report = entry.build, progress or PreparationProgress()
    place = root or default_root()
    publish(place, name, lambda directory: build(directory, name, source, report), force=force)
    return open_prepared(place, name, entry.recipe)[0]


def is_prepared(name: str, root: Path | None = None) -> bool:
    """Return True if ``name`` can be opened without preparing it; files are not verified."""
    name, entry = _needed(name)
    return entry.build is None or ((root or default_root()) / name).is_dir()


def read_record(name: str, root: Path | None = None) -> dict[str, Any]:
    """Return the record of a prepared data set after verifying its files."""
    name, entry = _needed(name)
    return open_prepared(root or default_root(), name, entry.recipe)[1]


def has_known_prefix(name: str) -> bool:
    """Return True if a name with a colon is a data set's, such as ``fairseq:DIR``."""
    prefix = name.partition(":")[0]
    return prefix in _prefixed(_own()) or prefix in _prefixed(_table())


def _prefixed(table: dict[str, Entry]) -> dict[str, Entry]:
    return {name.partition(":")[0]: entry for name, entry in table.items() if ":" in name}


def _find(name: str) -> tuple[Entry, str]:
    """Return the data set of that name, and what follows its prefix.

    Other packages are loaded only if naspipe has no data set of that name.
    """
    prefix, _, rest = name.partition(":")
    for table in (_own, _table):
        entry = _prefixed(table()).get(prefix) if rest else table().get(name)
        if entry is not None:
            break
    else:
        raise ConfigError(f"unknown data set {name!r}: expected one of {', '.join(_table())}")
    for start, kind in ((_MASKED, "translation"), (VIEWS, "image")):
        if name.startswith(start) and _find(rest)[0].kind != kind:
            raise ConfigError(
                f"data set {name!r}: expected {start} before one of "
                f"{', '.join(names_of_kind(kind))}"
            )
    return entry, rest


def _needed(name: str) -> tuple[str, Entry]:
    """Return the name and the entry of the data that must be prepared for ``name``."""
    entry, rest = _find(name)
    return (rest, _find(rest)[0]) if entry.name.startswith((_MASKED, VIEWS)) else (name, entry)
