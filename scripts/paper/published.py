"""What the papers report.

NASPipe (ASPLOS'22): Tables 2 to 5 and the text around its figures. GroPipe (IEEE Trans. Computers
2025): Tables VI and VII and the text around Figure 14; their names begin with GROPIPE.
"""

from __future__ import annotations

from typing import NamedTuple


class Table2Row(NamedTuple):
    """NASPipe on 8 GPUs."""

    batch: int
    alu: float
    """Total use of the GPUs' units, of 8."""
    seconds: float
    """Per subnet."""
    bubble: float
    hit_rate: float


TABLE2 = {
    "nlp.c1": Table2Row(192, 3.9, 1.13, 0.39, 0.864),
    "nlp.c2": Table2Row(192, 2.8, 1.09, 0.57, 0.916),
    "nlp.c3": Table2Row(192, 2.0, 1.12, 0.68, 0.943),
    "cv.c1": Table2Row(64, 3.5, 0.87, 0.43, 0.926),
    "cv.c2": Table2Row(64, 2.6, 0.86, 0.58, 0.948),
    "cv.c3": Table2Row(64, 2.0, 0.89, 0.68, 0.971),
}


class BaselineRow(NamedTuple):
    """Another system on NLP.c1 and 8 GPUs (Table 2)."""

    batch: int
    bubble: float
    alu: float
    hit_rate: float | None = None


BASELINES = {
    "naspipe": BaselineRow(192, 0.39, 3.9, 0.864),
    "gpipe": BaselineRow(32, 0.57, 0.5),
    "pipedream": BaselineRow(16, 0.10, 0.6),
    "vpipe": BaselineRow(192, 0.57, 2.6, 0.011),
}

SPEEDUPS = {"gpipe": "1.1 to 7.8", "pipedream": "0.87 to 6.5", "vpipe": "0.77 to 1.5"}
"""NASPipe's throughput over each system's, over all spaces (Figure 5)."""

WITHOUT_SCHEDULER_BUBBLE = 0.75

TABLE3 = {
    "csp": "identical on 4, 8 and 16 GPUs (NLP.c1 loss 5.9663 three times, BLEU 22.17)",
    "bsp": "different each time (NLP.c1 6.0026, 5.9772, 5.9974)",
    "asp": "different each time (NLP.c1 6.7765, 6.7835, 6.8262)",
}

TABLE4 = {
    ("csp", 4): "2F-2B-5F-5B-7F-7B",
    ("csp", 8): "2F-2B-5F-5B-7F-7B",
    ("bsp", 4): "2F-2B-5F-5B-7F-7B",
    ("bsp", 8): "2F-5F-7F-2B-5B-7B",
    ("asp", 4): "2F-2B-5F-7F-5B-7B",
    ("asp", 8): "2F-5F-7F-2B-5B-7B",
}
"""Accesses of one layer that subnets 2, 5 and 7 use, by policy and number of GPUs."""

TABLE5_NAMES = {
    "nlp": {
        "conv 3x1": "conv 3x1", "separable 7x1": "separable 7x1",
        "light 5x1": "light 5x1, 1 heads", "attention 8": "attention, 8 heads",
    },
    "cv": {
        "conv 3x3": "conv 3x3", "separable 3x3": "separable 3x3",
        "separable 5x5": "separable 5x5", "dilated 3x3": "dilated separable 3x3",
    },
}  # fmt: skip
"""Rows of Table 5 and the operation of ours that is the same."""

BATCH_FIXED_SHARE = 0.84
"""Share of a step's time that does not depend on the batch, from Table 2's own figures on NLP.c1.

Use per busy GPU is 0.80 at batch 192, 0.145 at 32 and 0.083 at 16, so a step of 32 takes 0.92 and
one of 16 takes 0.80 of the time of a step of 192: shares of 0.90 and 0.78, of which this is the
mean.
"""


class GropipeCell(NamedTuple):
    """Images per second of one network on N groups of k GPUs (GroPipe, Tables VI and VII)."""

    plain: int
    """With one micro-batch a group."""
    best: int
    passes: int
    """Micro-batches of a group at the best."""


GROPIPE_SHAPES = ((2, 2), (2, 3), (2, 4), (3, 2), (4, 2))
"""Groups and stages."""

_GROPIPE_ROWS = {
    "resnet50": ((161, 249, 12), (156, 293, 12), (157, 314, 6), (230, 345, 12), (291, 426, 12)),
    "resnet101": ((100, 152, 8), (98, 187, 10), (95, 197, 8), (141, 209, 12), (175, 257, 10)),
    "resnet152": ((70, 106, 8), (69, 135, 12), (67, 143, 8), (99, 147, 10), (123, 180, 10)),
    "vgg16": ((96, 142, 8), (97, 170, 12), (101, 189, 8), (139, 202, 8), (176, 252, 8)),
    "vgg19": ((87, 128, 8), (87, 154, 8), (88, 170, 8), (121, 175, 8), (157, 220, 8)),
}

GROPIPE = {
    (network, shape): GropipeCell(*cell)
    for network, row in _GROPIPE_ROWS.items()
    for shape, cell in zip(GROPIPE_SHAPES, row, strict=True)
}
"""By network, and groups and stages: 8 Tesla T4 of one host, global batch 256."""

GROPIPE_COMMUNICATION = "at most 1.76 (VGG-16, 4 groups x 2 stages), more with more stages"
"""Gain of GroPipe's communication over a base line that it does not name (Figure 14)."""

TSPIPE: dict[str, tuple[float, float, float]] = {
    "ViT-L to ResNet-101": (57.41, 136.8, 204.4),
    "ViT-L to ResNet-152": (47.24, 126.6, 180.7),
    "ViT-H to ResNet-101": (35.65, 100.6, 148.5),
    "ViT-H to ResNet-152": (30.30, 84.03, 141.8),
    "BERT-xxlarge": (30.36, 75.22, 98.82),
    "ResNet-18, BYOL": (346.3, 585.1, 728.5),
    "ResNet-50, BYOL": (102.0, 232.0, 295.8),
    "ResNet-101, BYOL": (71.25, 162.7, 243.0),
    "ResNet-152, BYOL": (53.33, 136.9, 201.6),
    "ViT-S, MoCo-v3": (99.42, 259.9, 365.7),
    "ViT-B, MoCo-v3": (35.06, 106.7, 176.6),
    "ViT-L, MoCo-v3": (11.31, 33.95, 54.70),
    "ViT-H, MoCo-v3": (5.496, 18.71, 35.26),
}
"""TSPipe's Table 2: samples per second on 8 GPUs of model parallel, GPipe and TSPipe."""

PIPEBD: dict[str, tuple[float, float]] = {
    "NAS CIFAR-10": (3.08, 1.60),
    "NAS ImageNet": (4.38, 8.80),
    "VGG-16 CIFAR-10": (7.32, 3.64),
    "VGG-16 ImageNet": (3.78, 9.35),
}
"""Pipe-BD, Table II: its speed over data parallelism, and over layerwise scheduling; four A6000."""


class EdlCell(NamedTuple):
    """Images per second of EDL-Dist's Tables 1 and 2."""

    normal: float
    """Without a teacher."""
    online: float
    """The teacher on the student's device."""
    elastic: float
    """Its own way: teachers on other devices."""


EDL_STUDENTS: dict[int, EdlCell] = {
    1: EdlCell(14.16, 5.92, 14.34),
    2: EdlCell(28.44, 11.51, 28.07),
    4: EdlCell(55.17, 21.76, 54.92),
    8: EdlCell(101.59, 37.87, 102.40),
    16: EdlCell(168.42, 59.94, 168.42),
}
"""Table 1: a student on so many CPU cores, its teacher on one P4; batch 64."""

EDL_TEACHERS: dict[int, EdlCell] = {
    8: EdlCell(57.14, 46.04, 35.68),
    12: EdlCell(57.14, 46.04, 52.46),
    16: EdlCell(57.14, 46.04, 57.65),
}
"""Table 2: a student on one P4, its teachers on so many CPU cores."""

EDL_V100, EDL_P4 = 228.0, 47.6
"""Section 4.3: images per second of the student on a V100 and of a teacher on a P4; batch 32."""

EDL_LONGER = 0.929
"""Section 4.3: Online takes up to so much longer."""

EDL_EIGHT = {40: "lower", 48: "best", 56: "lower"}
"""Section 4.4: throughput of eight V100 by P4."""

EDL_GAIN, EDL_OVER_NORMAL = 1.235, 1.128
"""Section 4.4, eight V100 and 48 P4: speed over Online, and time over normal training."""
