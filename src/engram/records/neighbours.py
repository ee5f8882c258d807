"""Features in two dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engram.errors import EngramError

FEWEST = 5  # items that have neighbours
ITERATIONS = 500  # enough for some hundred items


def flat_map(features: npt.NDArray[Any], *, seed: int = 0) -> npt.NDArray[np.float64]:
    """[m, 2] t-SNE of features [m, F], the same every time; NaN for fewer than five items.

    Examples
    --------
    >>> flat_map(np.eye(6)).shape, bool(np.isnan(flat_map(np.eye(3))).all())
    ((6, 2), True)
    """
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError as error:
        raise EngramError(
            "a map of features needs scikit-learn: pip install scikit-learn"
        ) from error
    clean = np.nan_to_num(np.asarray(features, np.float64))
    if len(clean) < FEWEST:
        return np.full((len(clean), 2), np.nan)
    near = min(30.0, (len(clean) - 1) / 3)
    made = TSNE(
        perplexity=near, init="random", random_state=seed, max_iter=ITERATIONS
    ).fit_transform(clean)
    return np.asarray(made, np.float64)
