"""fairseq and naspipe side by side, in a process of their own: ``with_fairseq.py DIR TOKENS ...``.

Prints one JSON object. fairseq changes the root logger and warns a lot, so no test imports it.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import warnings
from pathlib import Path

import numpy as np

WORDS = [f"{a}{b}" for a in "bdfgklmn" for b in ("a", "e", "i", "o", "ung", "heit")]


def write_texts(directory):
    """Small sentences of two languages with many ties of their lengths, in three splits."""
    draw = random.Random(1)
    for split, count in (("train", 300), ("valid", 40), ("test", 40)):
        pairs = [
            [draw.choices(words, k=draw.randint(1, 9)) for words in (WORDS, WORDS[5:])]
            for _ in range(count)
        ]
        for side, language in enumerate(("en", "de")):
            lines = "".join(" ".join(pair[side]) + "\n" for pair in pairs)
            (directory / f"{split}.{language}").write_text(lines)


def preprocess(texts, destination, kind="mmap"):
    """What ``fairseq-preprocess`` does."""
    from fairseq_cli.preprocess import cli_main

    arguments = ["--source-lang", "en", "--target-lang", "de", "--dataset-impl", kind]
    arguments += ["--destdir", str(destination)]
    for split in ("train", "valid", "test"):
        arguments += [f"--{split}pref", str(texts / split)]
    sys.argv = ["fairseq-preprocess", *arguments]
    cli_main()


def fairseq_batches(directory, split, max_tokens, multiple, seed, epoch, *, task=None):
    """The batches of one epoch; those of a task that had an epoch before keep its batches."""
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    is_new = task is None
    if task is None:
        languages = next(directory.glob("train.*.idx")).name.split(".")[1].split("-")
        task = TranslationTask.setup_task(
            TranslationConfig(
                data=str(directory),
                source_lang=languages[0],
                target_lang=languages[1],
                dataset_impl=None,
                required_seq_len_multiple=1,
                train_subset="train",
            )
        )
        task.load_dataset(split)
    batches = task.get_batch_iterator(
        task.dataset(split), max_tokens=max_tokens, required_batch_size_multiple=multiple,
        seed=seed, epoch=epoch, disable_iterator_cache=is_new and epoch > 1,
    ).next_epoch_itr(shuffle=split == "train", set_dataset_epoch=False)  # fmt: skip
    return task, [rows_of(batch["net_input"], batch["target"]) for batch in batches]


def rows_of(inputs, target):
    """A batch as rows, in an order that neither side's sort of equal lengths decides."""
    source, previous = inputs["src_tokens"].numpy(), inputs["prev_output_tokens"].numpy()
    return in_order(source, previous, target.numpy())


def in_order(source, previous, target):
    """The rows by their tokens; shapes are part of it."""
    joined = np.concatenate([source, previous, target], axis=1)
    return source.shape, target.shape, joined[np.lexsort(joined.T[::-1])].tolist()


def naspipe_batches(directory, split, max_tokens, multiple, seed, epoch):
    """The same of naspipe, which counts sequence IDs through the epochs."""
    from naspipe.data.registry import open_data

    data = open_data(
        f"fairseq:{directory}", split=split, max_tokens=max_tokens, required_multiple=multiple
    )
    first = (epoch - 1) * data.batches_per_epoch
    found = []
    for sequence_id in range(first, first + data.batches_per_epoch):
        batch = data(seed, sequence_id)
        found.append(in_order(*(batch[name].numpy() for name in ("source", "previous", "target"))))
    return found


def compare(directory, max_tokens):
    """How many batches differ, of every split, multiple, seed and epoch that is tried."""
    rows = []
    for split, multiple, seed, epoch in (
        ("train", 1, 1, 1), ("train", 1, 1, 2), ("train", 8, 7, 1), ("train", 8, 7, 3),
        ("test", 8, 1, 1),
    ):  # fmt: skip
        arguments = (directory, split, max_tokens, multiple, seed, epoch)
        theirs, ours = fairseq_batches(*arguments)[1], naspipe_batches(*arguments)
        differ = sum(one != other for one, other in zip(theirs, ours, strict=False))
        rows.append(
            {
                "split": split, "multiple": multiple, "seed": seed, "epoch": epoch,
                "batches": [len(theirs), len(ours)], "sentences": sum(len(b[2]) for b in ours),
                "tokens": sum(b[0][0] * b[0][1] for b in ours), "differ": differ,
            }
        )  # fmt: skip
    return rows


def compare_reused(directory, max_tokens):
    """An epoch behind another in one process, where fairseq keeps the first one's batches."""
    task, _ = fairseq_batches(directory, "train", max_tokens, 1, 1, 1)
    theirs = fairseq_batches(directory, "train", max_tokens, 1, 1, 2, task=task)[1]
    ours = naspipe_batches(directory, "train", max_tokens, 1, 1, 2)
    return {"batches": len(ours), "differ": sum(a != b for a, b in zip(theirs, ours, strict=True))}


def check(scratch, max_tokens):
    """Preprocess small texts in both of fairseq's formats, and compare all of their batches."""
    (scratch / "texts").mkdir()
    write_texts(scratch / "texts")
    found = {}
    for kind in ("mmap", "lazy"):
        preprocess(scratch / "texts", scratch / kind, kind)
        found[kind] = compare(scratch / kind, max_tokens)
    return {**found, "reused": compare_reused(scratch / "mmap", max_tokens)}


def main():
    warnings.simplefilter("ignore")
    scratch, max_tokens, *prepared = sys.argv[1:]
    with contextlib.redirect_stdout(io.StringIO()):
        found = check(Path(scratch), int(max_tokens))
        for directory in prepared:
            found[Path(directory).name] = compare(Path(directory), 600)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
