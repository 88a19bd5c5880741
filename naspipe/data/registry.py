"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.data import fashion_mnist, libreoffice_help
from naspipe.data.cache import Description, SilentProgress, default_root, open_prepared, publish
from naspipe.data.images import ImageData, PreparationProgress, open_digits, open_image_folder
from naspipe.data.text import PREFIX as _MASKED
from naspipe.data.text import MaskedWords, TranslationData
from naspipe.data.views import Augment, Views

SPLITS = ("train", "valid", "test")
DEFAULT_MAX_TOKENS = 4096
DEFAULT_BATCH_SIZE = 64

VIEWS = "views:"
"""What the names of data begin with that show two views of each image; those of images follow."""

DEFAULT_BATCHES = 4

Builder = Callable[[Path, str, Path | None, PreparationProgress], Description]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `naspipe data list`."""

    name: str
    summary: str
    recipe: int = 0
    build: Builder | None = None
    """Prepares it; None where nothing has to be prepared."""

    @property
    def kind(self) -> str:
        """``translation``, ``masked words``, ``image`` or ``image views``: what spaces need."""
        if self.name.startswith(_MASKED):
            return "masked words"
        if self.name.startswith(VIEWS):
            return "image views"
        is_text = self.build is libreoffice_help.build or self.name == "fairseq:DIR"
        return "translation" if is_text else "image"


_ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            "en-de-2k",
            "English-German sentences of LibreOffice's help, 2,000 subword merges",
            libreoffice_help.RECIPE,
            libreoffice_help.build,
        ),
        Entry(
            "en-de-8k",
            "the same sentences, 8,000 subword merges",
            libreoffice_help.RECIPE,
            libreoffice_help.build,
        ),
        Entry(
            "fashion-mnist",
            "60,000 + 10,000 grey 28x28 images of clothing, 10 classes",
            fashion_mnist.RECIPE,
            fashion_mnist.build,
        ),
        Entry("digits", "1,797 grey 8x8 images of digits, 10 classes, from scikit-learn"),
        Entry("fairseq:DIR", "a translation data set that fairseq-preprocess wrote to DIR"),
        Entry("image-folder:DIR", "images as DIR/train/CLASS/NAME.jpg (or .png), needs Pillow"),
        Entry(f"{_MASKED}NAME", "sentences of NAME, prepared translation data, with words masked"),
        Entry(f"{VIEWS}NAME", "images of NAME, each step two views of every one"),
    )
}

_PREFIXED = {name.partition(":")[0]: entry for name, entry in _ENTRIES.items() if ":" in name}


def entries() -> list[Entry]:
    """Return every data set there is; of ``PREFIX:DIR`` ones the user gives what follows."""
    return list(_ENTRIES.values())


def names_of_kind(kind: str) -> list[str]:
    """What the data sets of one kind are called."""
    return [entry.name for entry in entries() if entry.kind == kind]


def find_entry(name: str) -> Entry:
    """The data set of that name.

    Raises:
        ConfigError: when there is none.
    """
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
    """Open one split of a data set; what had to be prepared is verified file by file.

    ``max_tokens`` (per batch) is for text, ``batch_size`` (images) for images,
    ``image_size`` (pixels) for image folders, ``batches`` (of a step) for views. Views are for
    training: the other splits show the images as they are.
    """
    if name.startswith(VIEWS) and _find(name):
        inner = open_data(
            name.removeprefix(VIEWS), root=root, max_tokens=max_tokens, batch_size=batch_size,
            split=split, image_size=image_size,
        )  # fmt: skip
        if split != "train":
            return inner
        shown = Views(inner, Augment(), views=2, batches=batches or DEFAULT_BATCHES)
        shown.record["name"] = VIEWS + shown.record["name"]
        return shown
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
    if is_text:
        tokens = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
        sentences = _open_sentences(
            name.removeprefix(_MASKED), root, tokens, split, required_multiple
        )
        return MaskedWords(sentences, split) if name.startswith(_MASKED) else sentences
    images = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
    if entry.name == "digits":
        return open_digits(images, split)
    if entry.name == "image-folder:DIR":
        return open_image_folder(Path(rest).expanduser(), images, split, image_size)
    place, full = open_prepared(root or default_root(), name, entry.recipe)
    return fashion_mnist.open_images(place, images, split, _manifest_record(full))


def _open_sentences(
    name: str, root: Path | None, max_tokens: int, split: str, required_multiple: int
) -> TranslationData:
    entry, rest = _find(name)
    if entry.name == "fairseq:DIR":
        return TranslationData(Path(rest).expanduser(), max_tokens, split, required_multiple)
    place, full = open_prepared(root or default_root(), name, entry.recipe)
    record = _manifest_record(full)
    return TranslationData(place, max_tokens, split, required_multiple, record=record)


def prepare(
    name: str,
    *,
    root: Path | None = None,
    source: Path | None = None,
    force: bool = False,
    progress: PreparationProgress | None = None,
) -> Path | None:
    """Prepare ``name`` unless that is done already, verify it and return its directory.

    ``source`` replaces the download (see `naspipe.data.debian.unpacked`). Returns None for a data
    set that needs no preparation. Masked words need that of their sentences.
    """
    name, entry = _needed(name)
    if entry.build is None:
        if source is not None or force:
            raise ConfigError(
                f"data set '{name}' needs no preparation: leave --from and --force out"
            )
        return None
    build = entry.build
    place = root or default_root()
    report = progress or SilentProgress()
    publish(place, name, lambda directory: build(directory, name, source, report), force=force)
    return open_prepared(place, name, entry.recipe)[0]


def is_prepared(name: str, root: Path | None = None) -> bool:
    """Tell whether ``name`` can be opened without preparing it first; files are not verified."""
    name, entry = _needed(name)
    return entry.build is None or ((root or default_root()) / name).is_dir()


def read_record(name: str, root: Path | None = None) -> dict[str, Any]:
    """Return the record of a prepared data set, its files verified."""
    name, entry = _needed(name)
    return open_prepared(root or default_root(), name, entry.recipe)[1]


def has_known_prefix(name: str) -> bool:
    """Tell whether a name with a colon is that of a data set, as in ``fairseq:DIR``."""
    return name.partition(":")[0] in _PREFIXED


def _find(name: str) -> tuple[Entry, str]:
    """The data set of that name, and what follows its prefix."""
    prefix, _, rest = name.partition(":")
    entry = _PREFIXED.get(prefix) if rest else _ENTRIES.get(name)
    if entry is None:
        raise ConfigError(f"unknown data set {name!r}: expected one of {', '.join(_ENTRIES)}")
    if name.startswith(_MASKED) and _find(rest)[0].kind != "translation":
        raise ConfigError(
            f"data set {name!r}: expected {_MASKED} before one of "
            f"{', '.join(names_of_kind('translation'))}"
        )
    if name.startswith(VIEWS) and _find(rest)[0].kind != "image":
        raise ConfigError(
            f"data set {name!r}: expected {VIEWS} before one of {', '.join(names_of_kind('image'))}"
        )
    return entry, rest


def _needed(name: str) -> tuple[str, Entry]:
    """Name and entry of what has to be prepared for a data set."""
    if _find(name)[0].name.startswith((_MASKED, VIEWS)):
        name = name.partition(":")[2]
    return name, _find(name)[0]


def _manifest_record(full: dict[str, Any]) -> dict[str, Any]:
    kept = {key: full[key] for key in ("name", "source", "version", "recipe", "counts")}
    return {**kept, "sha256": {name: entry["sha256"] for name, entry in full["files"].items()}}
