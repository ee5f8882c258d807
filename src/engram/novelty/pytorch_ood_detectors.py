"""Detectors of the package pytorch-ood, fitted along the stream."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from engram.errors import BadArgument, EngramError, bad, check_int, unknown
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.models.forward_pass import Output
from engram.novelty import knn
from engram.novelty.detector import (
    ROWS_PER_BATCH,
    ComparedHead,
    Facts,
    OutputDetector,
    State,
    class_vectors,
)
from engram.probes.stage_view import StageView

GIVEN_ARGUMENTS = (
    "model",
    "encoder",
    "w",
    "b",
    "head",
)  # what a detector of the package gets from here


@dataclass(frozen=True, init=False)
class Wrapped(OutputDetector):
    """A detector from the package pytorch-ood (``pip install engram-cl[ood]``).

    Any that reads logits or features: it is made anew after every stage with the present last layer
    and fitted on features and logits as they were when their task was learnt. Its name begins with
    ``wrapped``, as some are in this package, too. Those that read
    logits or the last layer see one head at a time, and rows of its classes; the others all rows.
    Runs take turns, on the host.

    Parameters
    ----------
    detector
        Its name there, such as ``ViM``, ``KLMatching`` or ``SHE``.
    options
        Its options, in Python also as further arguments.
    keep
        Rows kept of every task to fit on, drawn at random.

    Examples
    --------
    >>> Wrapped("ViM", d=64).name
    'wrapped vim d=64'
    >>> Wrapped("ViM", d=64) == Wrapped("ViM", {"d": 64})
    True
    """

    fits: ClassVar[bool] = True
    mapped: ClassVar[bool] = False
    detector: str = "EnergyBased"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    keep: int = 2000

    def __init__(
        self, detector: str = "EnergyBased", options: Mapping[str, Any] | None = None,
        keep: int = 2000, refit: str = "never", **more: Any,
    ) -> None:  # fmt: skip
        if not isinstance(detector, str) or not detector.isidentifier():
            raise bad("detector", "the name of a detector of pytorch-ood", detector)
        if options is not None and not isinstance(options, Mapping):
            raise bad("options", "a mapping of options", options)
        object.__setattr__(self, "detector", detector)
        object.__setattr__(self, "options", {**(options or {}), **more})
        object.__setattr__(self, "keep", check_int("keep", keep, 1))
        object.__setattr__(self, "refit", refit)

    @property
    def name(self) -> str:
        words = ["wrapped", self.detector.lower()]
        words += [f"refit={self.refit}"] if self.refit != "never" else []
        words += [f"{k}={v}" for k, v in self.options.items()]
        return " ".join([*words, *([f"keep={self.keep}"] if self.keep != 2000 else [])])

    def refuse(self, facts: Facts) -> None:
        try:
            rows = torch.zeros(2, facts.features)
            self._made(rows, torch.zeros(2))
        except EngramError:
            raise
        except Exception as error:  # whatever the package has to say
            raise bad("options", f"options of {self.detector} ({error})", self.options) from error

    # -- for one run -----------------------------------------------------------------------------
    def start(self, facts: Facts) -> State:
        widths = {"features": facts.features, "logits": facts.columns, "label": 1}
        return knn.make_empty_bank(facts.like, **widths)

    def begin(self, state: State, stage: int) -> State:
        return knn.open_bank(state, self.keep)

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        rows = {**output._asdict(), "label": batch.target[:, None]}
        return knn.add_to_bank(state, rows, batch, keep=self.keep, word="wrapped")

    def _of(self, net: Net, output: Output, columns: Tensor, state: State) -> Tensor:
        return self._asked(self._fitted(net, columns, state), output, columns)

    def _asked(self, one: Any, output: Output, columns: Tensor) -> Tensor:
        """Return familiarity: the negative of the package's outlier score."""
        with self._by_name():
            if hasattr(one, "predict_logits"):
                foreign = one.predict_logits(output.logits.cpu()[:, columns.cpu()])
            else:
                foreign = one.predict_features(output.features.flatten(1).cpu())
        return -torch.as_tensor(foreign).to(output.logits)

    def _fitted(self, net: Net, columns: Tensor, state: State) -> Any:
        """The package's detector on the rows kept so far, for the head with these columns."""
        seen = columns.cpu()
        bias = net.params.head.get("bias")
        rows = class_vectors(net).detach().cpu()
        offset = rows.new_zeros(len(rows)) if bias is None else bias.detach().cpu()
        one = self._made(rows[seen], offset[seen])
        if not getattr(one, "requires_fit", False):
            return one
        label = state["rows"]["label"][:, 0].long().cpu()
        used = state["rank"].cpu() > 0
        if self._by_head(type(one)):
            used &= seen[label]
        place = seen.cumsum(0) - 1  # of a column within the head
        features, logits = (state["rows"][k].cpu()[used] for k in ("features", "logits"))
        with self._by_name():
            if hasattr(one, "predict_logits"):
                return one.fit_logits(logits[:, seen], place[label[used]])
            if self._by_head(type(one)):
                return one.fit_features(features, place[label[used]])
            return one.fit_features(features, label[used].unique(return_inverse=True)[1])

    @contextmanager
    def _by_name(self) -> Iterator[None]:
        """Turn errors raised by the package into errors that name the detector."""
        try:
            yield
        except Exception as error:
            raise EngramError(f"{self.name}: pytorch-ood cannot go on ({error})") from error

    def _by_head(self, kind: type[Any]) -> bool:
        wanted = inspect.signature(kind).parameters
        return hasattr(kind, "predict_logits") or bool({"w", "head"} & set(wanted))

    def _made(self, rows: Tensor, bias: Tensor) -> Any:
        """An object of the package for a last layer with rows [C, F]."""
        kind = detector_class(self.detector)
        head = nn.Linear(rows.shape[1], len(rows), device="meta")
        head.weight, head.bias = nn.Parameter(rows, False), nn.Parameter(bias, False)
        have = {"model": None, "encoder": None, "w": rows, "b": bias, "head": head}
        wanted = inspect.signature(kind).parameters
        for name in self.options:
            if name not in wanted or name in GIVEN_ARGUMENTS:
                raise unknown(
                    f"options of {self.detector}", name, set(wanted) - set(GIVEN_ARGUMENTS)
                )
        return kind(**{k: v for k, v in have.items() if k in wanted}, **self.options)

    # -- over all runs ---------------------------------------------------------------------------
    def _scored(self, view: StageView, head: ComparedHead, state: Any) -> Tensor:
        def one_run(net: Net, output: Output, columns: Tensor, state: State) -> Tensor:
            one = self._fitted(net, columns, state)
            parts = zip(*(part.split(16 * ROWS_PER_BATCH) for part in output[:2]), strict=True)
            return torch.cat([self._asked(one, Output(*part), columns) for part in parts])

        scores = self._map(view, one_run, view.outputs, head.columns, state).float()
        return torch.where(head.wanted, scores, torch.nan)


def detector_class(name: str) -> type[Any]:
    """A class of the package that reads logits or features."""
    try:
        from pytorch_ood import detector as package
    except (ImportError, RuntimeError) as error:  # torchvision without its operators
        reason = f"the package pytorch-ood cannot be imported ({error})"
        remedy = "pip install engram-cl[ood]"
        if isinstance(error, RuntimeError):
            remedy = "torchvision and torch must be of one build, both for the CPU or both for CUDA"
        raise BadArgument(f"Wrapped: {reason}; {remedy}") from error
    kinds = ("predict_logits", "predict_features")
    able = {
        name for name, one in vars(package).items()
        if isinstance(one, type) and any(hasattr(one, kind) for kind in kinds)
    }  # fmt: skip
    if name in vars(package) and name not in able:
        raise bad("detector", "a detector of pytorch-ood that reads logits or features", name)
    if name not in able:
        raise unknown("detector", name, able)
    found: type[Any] = getattr(package, name)
    return found
