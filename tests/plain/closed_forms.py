"""Classifiers of fixed features in closed form, from all rows at once, as no method may do it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

RIDGES = [10.0**power for power in range(-8, 10)]


def nearest_mean(z: Tensor, y: Tensor, test: Tensor, *, cosine: bool = True) -> Tensor:
    """Similarities [n, C] to the mean features of the classes."""
    means = torch.stack([z[y == c].mean(0) for c in range(int(y.max()) + 1)])
    if cosine:
        return torch.stack([F.cosine_similarity(test, mean[None]) for mean in means], 1)
    return -torch.stack([(test - mean).square().sum(1) for mean in means], 1)


def ridge_regression(z: Tensor, y: Tensor, test: Tensor, ridge: float) -> Tensor:
    """Scores [n, C] of ridge regression to one-hot labels."""
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    weight = torch.linalg.solve(z.T @ z + ridge * eye, z.T @ F.one_hot(y).to(z))
    return test @ weight


def best_ridge(z: Tensor, y: Tensor, held: Tensor) -> float:
    """The ridge with the least squared error on held-out rows, each solved for by itself."""
    errors = []
    for ridge in RIDGES:
        scores = ridge_regression(z[~held], y[~held], z[held], ridge)
        errors.append(F.mse_loss(scores, F.one_hot(y[held], scores.shape[1]).to(z)))
    return RIDGES[int(torch.stack(errors).argmin())]


def discriminant(z: Tensor, y: Tensor, test: Tensor, shrinkage: float) -> Tensor:
    """Scores [n, C] of linear discriminants, shrunk towards a multiple of the identity matrix."""
    means = torch.stack([z[y == c].mean(0) for c in range(int(y.max()) + 1)])
    away = z - means[y]
    pooled = sum(torch.outer(row, row) for row in away) / len(away)
    target = torch.eye(len(pooled)).to(z) * pooled.diagonal().mean()
    inverse = torch.linalg.inv((1 - shrinkage) * pooled + shrinkage * target)
    return test @ inverse @ means.T - torch.stack([m @ inverse @ m / 2 for m in means])


def mahalanobis(
    z: Tensor, y: Tensor, test: Tensor, *, power: float, diagonal: float, rest: float
) -> Tensor:
    """Minus the distances [n, C] of FeCAM: a shrunk and normalised covariance for each class."""
    z, test = z.sign() * z.abs() ** power, test.sign() * test.abs() ** power
    scores = []
    for c in range(int(y.max()) + 1):
        own = z[y == c]
        covariance = torch.cov(own.T)
        off = ~torch.eye(len(covariance), dtype=torch.bool)
        one, two = covariance.diagonal().mean(), covariance[off].mean()
        shrunk = covariance + diagonal * one * (~off).to(z) + rest * two * off.to(z)
        deviation = shrunk.diagonal().sqrt()
        inverse = torch.linalg.inv(shrunk / torch.outer(deviation, deviation))
        away = F.normalize(test, dim=1) - F.normalize(own.mean(0), dim=0)
        scores.append(-torch.stack([row @ inverse @ row for row in away]))
    return torch.stack(scores, 1)
