"""Novelty detectors, one file each: they score how familiar an input is to a network.

Detection metrics are in `engram.metrics`, recorded scores in `engram.records`, outside sets in
`engram.probes`. Begin with `detector.Detector`, the contract, then `softmax` and `knn`.
"""

from __future__ import annotations

from engram.novelty.b1 import B1
from engram.novelty.b2 import B2
from engram.novelty.detector import Detector, Facts, OutputDetector
from engram.novelty.energy import Energy
from engram.novelty.knn import KNN
from engram.novelty.mahalanobis import Mahalanobis
from engram.novelty.odin import ODIN
from engram.novelty.pytorch_ood_detectors import Wrapped
from engram.novelty.softmax import Softmax
from engram.novelty.tuned import Tuned
from engram.novelty.vae import VAE

__all__ = [
    "B1",
    "B2",
    "KNN",
    "ODIN",
    "VAE",
    "Detector",
    "Energy",
    "Facts",
    "Mahalanobis",
    "OutputDetector",
    "Softmax",
    "Tuned",
    "Wrapped",
    "detectors",
]


def detectors() -> dict[str, type[Detector]]:
    """Return all detectors by name.

    Examples
    --------
    >>> sorted(detectors())
    ['B1', 'B2', 'Energy', 'KNN', 'Mahalanobis', 'ODIN', 'Softmax', 'Tuned', 'VAE', 'Wrapped']
    """
    every = (Softmax, ODIN, Mahalanobis, VAE, B1, B2, Energy, KNN, Tuned, Wrapped)
    return {one.__name__: one for one in every}
