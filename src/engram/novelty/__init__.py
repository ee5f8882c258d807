"""Novelty detectors, one file each: they score how familiar an input is to a network.

Detection metrics are in `engram.metrics`, recorded scores in `engram.records`, outside sets in
`engram.probes`. Begin with `detector.Detector`, the contract, then `softmax` and `knn`.
"""

from __future__ import annotations

from engram.novelty.ash import ASH
from engram.novelty.b1 import B1
from engram.novelty.b2 import B2
from engram.novelty.detector import Detector, Facts, OutputDetector
from engram.novelty.dice import DICE
from engram.novelty.energy import Energy
from engram.novelty.fdbd import FDBD
from engram.novelty.gen import GEN
from engram.novelty.grad_norm import GradNorm
from engram.novelty.kl_matching import KLMatching
from engram.novelty.knn import KNN
from engram.novelty.last_layer import LastLayer, LastLayerDetector
from engram.novelty.mahalanobis import Mahalanobis
from engram.novelty.max_logit import MaxLogit
from engram.novelty.nnguide import NNGuide
from engram.novelty.odin import ODIN
from engram.novelty.pytorch_ood_detectors import Wrapped
from engram.novelty.react import ReAct
from engram.novelty.rmd import RMD
from engram.novelty.she import SHE
from engram.novelty.softmax import Softmax
from engram.novelty.tuned import Tuned
from engram.novelty.vae import VAE
from engram.novelty.vim import ViM

__all__ = [
    "ASH",
    "B1",
    "B2",
    "DICE",
    "FDBD",
    "GEN",
    "KNN",
    "ODIN",
    "RMD",
    "SHE",
    "VAE",
    "Detector",
    "Energy",
    "Facts",
    "GradNorm",
    "KLMatching",
    "LastLayer",
    "LastLayerDetector",
    "Mahalanobis",
    "MaxLogit",
    "NNGuide",
    "OutputDetector",
    "ReAct",
    "Softmax",
    "Tuned",
    "ViM",
    "Wrapped",
    "detectors",
]


def detectors() -> dict[str, type[Detector]]:
    """Return all detectors by name.

    Examples
    --------
    >>> list(detectors())[:5]
    ['Softmax', 'MaxLogit', 'Energy', 'GEN', 'ODIN']
    """
    every = (
        Softmax, MaxLogit, Energy, GEN, ODIN, GradNorm, KLMatching, ReAct, ASH, DICE, SHE,
        Mahalanobis, RMD, KNN, NNGuide, ViM, FDBD, VAE, B1, B2, Tuned, Wrapped,
    )  # fmt: skip
    return {one.__name__: one for one in every}
