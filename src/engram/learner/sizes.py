"""Bytes of what a learner holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engram.learner.tree import nbytes

if TYPE_CHECKING:
    from engram.learner.learner import Learner


def of_memory(learner: Learner) -> int:
    """Of the exemplars and of what is remembered with them; a latent stands for its x.

    And of networks that stand for exemplars (`Network.counts`).
    """
    values = learner.values
    sample = 0 if "latent" in values else learner.stream.data.sample_bytes
    return len(learner.exemplars) * sample + nbytes(values) + of_generators(learner)


def of_generators(learner: Learner) -> int:
    """Of networks that count as memory."""
    total = 0
    for name, settings in learner.networks.settings.items():
        if settings.counts:
            start, stop = learner.networks.places(name)
            own = {k: v for k, v in learner.buffers.items() if k.startswith(f"{name}.")}
            total += (stop - start) * learner.vector.element_size() + nbytes(own)
    return total


def by_kind(learner: Learner) -> dict[str, int]:
    """Of everything.

    ``parameters`` and ``buffers`` of the main network, ``networks``: further networks with
    their buffers, method ``state``, ``optimizer``, and ``exemplars``: their samples, and
    networks that count as memory.
    """
    networks, buffers = learner.networks, learner.buffers
    main = networks.main_size * learner.vector.element_size()
    own = sum(buffers[k].nbytes for k in networks.main_buffers if k in buffers)
    return {
        "parameters": main, "buffers": own,
        "networks": nbytes(learner.vector) - main + nbytes(buffers) - own - of_generators(learner),
        "state": nbytes(learner.state), "optimizer": nbytes(learner.opt),
        "exemplars": of_memory(learner),
    }  # fmt: skip
