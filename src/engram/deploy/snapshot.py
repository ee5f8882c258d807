"""`LearnerSnapshot`: the immutable network after a task, which any number of threads may use."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.deploy.calibration import DEFAULT_RATE, Alarms, CalibrationRows, explain_no_alarm
from engram.deploy.forgetting import forgotten_columns
from engram.deploy.new_task import (
    Array,
    LearnerSettings,
    convert_inputs,
    make_data,
    make_placeholder_stream,
    names_to_labels,
)
from engram.engine.backend import inference_numerics, probe_numerics
from engram.engine.factory import LearnerFactory
from engram.engine.portable_state import PortableState, restore_state
from engram.engine.training import PRECISIONS
from engram.errors import EngramError, bad, check_float, check_int
from engram.learner.feed import Feed
from engram.learner.networks import AnsweringNet, Net
from engram.learner.parameter_layout import Networks, Views
from engram.methods.method import compute_answer, tells_task
from engram.models.classifier import Encoder
from engram.models.forward_pass import Output
from engram.novelty.detector import Detector
from engram.records.novelty_records import p_values

ROWS_AT_ONCE = 1024


class FixedNet(Net):
    """Net whose modules hold the weights themselves, so that calls need not swap them in.

    Use one object per call; the modules are shared.
    """

    def __init__(self, networks: Networks, bundle: torch.nn.Module) -> None:
        super().__init__(networks, None)
        self.bundle = bundle

    @property
    def vector(self) -> Tensor:
        return self.networks.layout.flatten(self.params[k] for k in self.networks.layout.shapes)

    @property
    def params(self) -> Views:
        return Views(self.bundle.named_parameters())

    def statistics(self) -> dict[str, Tensor]:
        return dict(self.bundle.named_buffers())

    def _skeleton(self) -> torch.nn.Module:
        return self.bundle

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        return self.bundle(path, *args)


class LearnerSnapshot:
    """Predictions of a learner after a task: scores, labels, novelty.

    Made from a `PortableState`, whose tensors it copies. Many threads may use it at once.
    """

    def __init__(
        self, found: PortableState, settings: LearnerSettings, *, kind: str, device: torch.device,
        detectors: Mapping[str, Detector],
    ) -> None:  # fmt: skip
        self.facts, self.method, self.device = found.facts, settings.method, device
        run = settings.run(make_placeholder_stream(found, found.columns))
        learner = LearnerFactory(device).learner(run)
        restore_state(learner, found)
        self.networks, self.state = learner.networks, learner.state
        self.bundle = _copy_with_weights(
            learner.networks.eval, {**learner.params, **learner.buffers},
            learner.networks.constants,
        )  # fmt: skip
        self.precision = settings.training.precision
        self.dtype = PRECISIONS[self.precision][0]
        self.labels: Array = names_to_labels(found.facts["classes"], kind)  # by column
        self.closed = forgotten_columns(found)
        self.seen = (learner.opened >= 0).to(device)
        self.seen[self.closed] = False
        self.detectors, self.probes = dict(detectors), learner.probes
        self.calibration = CalibrationRows.from_state(found)
        self._calibrated: dict[str, Array] = {}  # familiarity of the calibration rows
        self._one_at_a_time = threading.Lock()  # hooks on layers would see outputs of other threads

    @property
    def stage(self) -> int:
        """The last task learnt, from 0."""
        return int(self.facts["stage"])

    @property
    def classes(self) -> Array:
        """Labels in sorted order, as scikit-learn has them."""
        found: Array = self.labels[self.columns]
        return found

    @property
    def columns(self) -> list[int]:
        """The output column of each of `classes`."""
        found: list[int] = np.argsort(self.labels, kind="stable").tolist()
        return [c for c in found if c not in self.closed]

    def net(self) -> FixedNet:
        """The networks with their weights, in eval mode."""
        return FixedNet(self.networks, self.bundle)

    def prepare(self, x: Any) -> Tensor:
        """Check, scale, normalise and crop inputs for the network, [n, ...]."""
        about = self.facts["inputs"]
        rows = convert_inputs(x, about)
        if not len(rows):
            raise bad("x", "at least one row", "none")
        place = torch.arange(len(rows))
        data: Data = make_data(rows, torch.zeros(len(rows), 1, dtype=torch.long), ["a"], 1, about,
                             place)  # fmt: skip
        feed = Feed(data, device=self.device, dtype=self.dtype, axes=self.networks.sample_axes)
        inputs = feed(place.to(self.device))
        frozen = self.frozen
        if frozen is None:
            return inputs
        return torch.cat([frozen(some) for some in inputs.split(ROWS_AT_ONCE)])

    @property
    def frozen(self) -> Encoder | None:
        """The frozen backbone below the network, if there is one."""
        net: Any = self.bundle.get_submodule("net")
        found: Encoder | None = net.frozen
        return found

    def open_columns(self, task: int | None) -> Tensor:
        """Mark the columns that compete, [C]: those of the task's head, or all seen so far."""
        tasks = self.facts["tasks"]
        if task is None:
            if self.facts["head"] == "multi":
                expected = (
                    f"the task of the rows, 0 to {len(tasks) - 1}: each has a head of its own"
                )
                raise bad("task", expected, None)
            return self.seen
        if check_int("task", task) >= len(tasks):
            raise bad("task", f"a task from 0 to {len(tasks) - 1}", task)
        own = torch.zeros_like(self.seen)
        own[tasks[task]["visible"]] = True
        own[self.closed] = False
        return own

    @torch.no_grad()
    def scores(self, x: Any, task: int | None = None) -> Tensor:
        """Compute the method's scores, [n, C], with -inf for columns that do not compete."""
        shut, parts = ~self.open_columns(task), []
        with inference_numerics(self.precision):
            for some in self.prepare(x).split(ROWS_AT_ONCE):
                found = self.answer(some, task).logits
                parts.append(found.masked_fill(shut, -torch.inf).float().cpu())
        return torch.cat(parts)

    def predict(self, x: Any, task: int | None = None) -> Any:
        """Predict labels, [n]; lists of labels for label sets."""
        scores = self.scores(x, task)
        if self.facts["labels"] == "set":
            return [self.labels[(row > 0).numpy()[: len(self.labels)]].tolist() for row in scores]
        return self.labels[scores.argmax(1).numpy()]

    def predict_proba(self, x: Any, task: int | None = None) -> Array:
        """Predict probabilities, [n, classes]: softmax, or sigmoids for label sets."""
        scores = self.scores(x, task)
        share = scores.sigmoid() if self.facts["labels"] == "set" else scores.double().softmax(1)
        found: Array = share[:, self.columns].double().numpy()
        return found

    def answer(self, x: Tensor, task: int | None = None) -> Output:
        """Compute what the method answers about prepared inputs."""
        return compute_answer(self.method, self.net(), x, self.state, self._told(task))

    def _told(self, task: int | None) -> int:
        """Return the task that the method is told, -1 for none; raise if it needs one."""
        if not tells_task(self.method, self.facts["head"]):
            return -1
        self.open_columns(task)  # raises
        return -1 if task is None else task

    @torch.no_grad()
    def features(self, x: Any, task: int | None = None) -> Array:
        """Compute the inputs of the last layer, [n, F]."""
        self._told(task)
        with inference_numerics(self.precision):
            parts = [self.answer(some, task).features.flatten(1).cpu()
                     for some in self.prepare(x).split(ROWS_AT_ONCE)]  # fmt: skip
        found: Array = torch.cat(parts).numpy()
        return found

    def novelty(self, x: Any, key: str, task: int | None = None) -> Array:
        """Compute novelty, minus a detector's familiarity, [n]; higher is more novel."""
        detector, columns = self.detectors[key], self.open_columns(task)
        state = self.probes.get(key, {})
        with self._one_at_a_time, torch.no_grad(), probe_numerics(self.precision):
            parts = [detector.score(self._answering(task), some, columns, state).float().cpu()
                     for some in self.prepare(x).split(ROWS_AT_ONCE)]  # fmt: skip
        found: Array = -torch.cat(parts).double().numpy()
        return found

    def explain_no_alarm(self, rate: float = DEFAULT_RATE) -> str:
        """Explain why `alarm` cannot be used; empty if it can."""
        return explain_no_alarm(self.calibration, self.facts, rate)

    def alarm(
        self, x: Any, key: str, rate: float = DEFAULT_RATE, *, per_class: bool = False
    ) -> Alarms:
        """Compare inputs with the calibration rows, or with those predicted as the same class."""
        check_float("rate", rate, 0.0, 1.0, open_low=True)
        held, problem = self.calibration, self.explain_no_alarm(rate)
        if held is None or problem:
            raise EngramError(problem)
        x = convert_inputs(x, self.facts["inputs"])  # once, with its warnings
        if key not in self._calibrated:
            familiar = -self.novelty(held.x, key)  # by the network as it is now
            self._calibrated[key] = np.where(np.isnan(familiar), -np.inf, familiar)
        familiar, novelty = self._calibrated[key], self.novelty(x, key)
        values = p_values(-novelty, familiar)
        compared = np.full(len(values), len(familiar))
        if per_class:
            predicted, own = (self.scores(one).argmax(1).numpy() for one in (x, held.x))
            for c in np.unique(predicted):
                same, rows = familiar[own == c], predicted == c
                if 1 / (len(same) + 1) <= rate:  # fewer rows could never raise an alarm
                    values[rows], compared[rows] = p_values(-novelty[rows], same), len(same)
        return Alarms(novelty, values, values <= rate, compared)

    def _answering(self, task: int | None) -> Net:
        if not self.method.implements("answer"):
            return self.net()
        told = self._told(task)
        return AnsweringNet(
            self.net(), lambda net, x: compute_answer(self.method, net, x, self.state, told)
        )

    def output(self, x: Any, task: int | None = None) -> Output:
        """Compute features and logits of prepared inputs."""
        with inference_numerics(self.precision):
            return self.answer(x, task)


def _copy_with_weights(
    skeleton: torch.nn.Module, weights: Mapping[str, Tensor], constants: Mapping[str, Tensor]
) -> torch.nn.Module:
    """Copy a module, with copies of these weights and buffers; constants are shared."""
    bundle = copy.deepcopy(skeleton, {id(value): value for value in constants.values()})
    with torch.no_grad():
        own = {**dict(bundle.named_parameters()), **dict(bundle.named_buffers())}
        for name, value in weights.items():
            own[name].data = value.detach().clone()
    return bundle.eval().requires_grad_(False)
