"""Data sets from Debian packages, on which the named search spaces are trained.

The registry of data sets, `naspipe.data.registry`, imports ``ENTRIES`` from here by name. Preparing
these data sets requires apt and dpkg, or the packages' files, and subword-nmt for text.
"""

from __future__ import annotations

from naspipe.data.cache import Entry
from search_spaces.debian import fashion_mnist, libreoffice_help

ENTRIES = (
    Entry(
        "en-de-2k",
        "English-German sentences of LibreOffice's help, 2,000 subword merges",
        "translation",
        libreoffice_help.RECIPE,
        libreoffice_help.build,
    ),
    Entry(
        "en-de-8k",
        "the same sentences, 8,000 subword merges",
        "translation",
        libreoffice_help.RECIPE,
        libreoffice_help.build,
    ),
    Entry(
        "fashion-mnist",
        "60,000 + 10,000 grey 28x28 images of clothing, 10 classes",
        "image",
        fashion_mnist.RECIPE,
        fashion_mnist.build,
        fashion_mnist.open_images,
    ),
)
