"""Small packages made by the tests, and the real data sets, prepared once per machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from naspipe.data import prepare
from naspipe.data.fairseq import write_dictionary, write_mmap
from search_spaces.debian.help_pages import split_of

HELP = {"libreoffice-help-en-us": "en-US", "libreoffice-help-de": "de"}
ENGLISH = "The quick brown fox number {0} jumps over the lazy dog of page {1}."
GERMAN = "Der schnelle braune Fuchs Nummer {0} springt über den faulen Hund von Seite {1}."


def write_package(root: Path, name: str, files: dict[str, str], version: str = "1:2.3-4") -> None:
    """Write what an unpacked Debian package would look like."""
    import gzip

    doc = root / "usr" / "share" / "doc" / name
    doc.mkdir(parents=True)
    with gzip.open(doc / "changelog.Debian.gz", "wt", encoding="utf-8") as file:
        file.write(f"{name} ({version}) unstable; urgency=low\n")
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")


def page(sentences: list[str]) -> str:
    """Return a help page with one numbered paragraph per sentence."""
    body = "".join(f'<p id="par_id{n}" dir="auto">{text}</p>\n' for n, text in enumerate(sentences))
    return f"<!DOCTYPE html><html><head><title>t</title></head><body>{body}</body></html>"


def page_names() -> list[str]:
    """Return page paths of which some fall into each split."""
    names = [f"guide/page{number}.html" for number in range(200)]
    held_out = [name for name in names if split_of(name) != "train"]
    return sorted(held_out + [name for name in names if split_of(name) == "train"][:12])


def write_sentences(directory: Path) -> Path:
    """Forty sentence pairs as fairseq would lay them out, of another language pair."""
    rng = np.random.RandomState(0)
    for split, number in (("train", 40), ("valid", 7)):
        for language in ("fr", "it"):
            rows = [[*rng.randint(4, 20, rng.randint(1, 9)), 2] for _ in range(number)]
            write_mmap(directory / f"{split}.fr-it.{language}", rows, 20)
    for language in ("fr", "it"):
        write_dictionary(directory / f"dict.{language}.txt", [(f"w{n}", 1) for n in range(16)])
    return directory


@pytest.fixture
def help_packages(tmp_path: Path) -> Path:
    """A directory that holds both help packages, unpacked."""
    root = tmp_path / "packages"
    for name, folder in HELP.items():
        text = ENGLISH if folder == "en-US" else GERMAN
        files = {
            f"usr/share/libreoffice/help/{folder}/text/{path}": page(
                [text.format(n, path.removesuffix(".html")[10:]) for n in range(6)]
            )
            for path in page_names()
        }
        write_package(root / name, name, files)
    return root


@pytest.fixture(scope="session")
def real_en_de() -> Path:
    """The real en-de-2k, in the machine's cache."""
    directory = prepare("en-de-2k")
    assert directory is not None
    return directory


@pytest.fixture(scope="session")
def real_fashion_mnist() -> Path:
    """The real fashion-mnist, in the machine's cache."""
    directory = prepare("fashion-mnist")
    assert directory is not None
    return directory
