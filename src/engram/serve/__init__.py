"""A learner behind HTTP: predict, novelty, learn, metrics, health. Needs the extra ``serve``."""

from __future__ import annotations
