"""Streaming linear discriminant analysis (Hayes and Kanan 2020, CVPR workshops)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engram import BadArgument, Method, PerRun


@dataclass(frozen=True, kw_only=True)
class SLDA(Method):
    """Class means and one covariance of features, which are those of the first task's network."""

    shrinkage: PerRun = 0.01

    def start(self, learner, task):
        if learner.stage:
            learner.free = torch.zeros_like(learner.free)
            return
        stages = torch.arange(len(learner.stream))[:, None]
        if bool((learner.stream.visible & (learner.stream.opening != stages)).any()):
            raise BadArgument("stream: expected tasks whose classes are new, got known classes")

    def loss(self, net, batch, state):
        return {"task": net.task(batch)}

    def finish(self, learner, task):
        features = learner.outputs(task.train).features.double()
        y = learner.labels(task.train)[:, 0]
        classes, width = len(learner.opened), features.shape[1]
        old = {name: value.cpu().double() for name, value in learner.state.items()}
        counts = old.get("counts", torch.zeros(classes).double())
        sums = old.get("sums", torch.zeros(classes, width).double())
        scatter = old.get("scatter", torch.zeros(width, width).double())
        counts = counts + torch.bincount(y, minlength=classes)
        sums = sums.index_add(0, y, features)
        means = sums / counts.clamp(min=1)[:, None]
        scatter = scatter + (features - means[y]).T @ (features - means[y])
        spread = scatter / counts.sum()
        eye = torch.eye(width).double()
        precision = torch.linalg.inv((1 - self.shrinkage) * spread + self.shrinkage * eye)
        found = {
            "counts": counts, "sums": sums, "scatter": scatter, "rows": means @ precision,
            "bias": -0.5 * ((means @ precision) * means).sum(1),
        }  # fmt: skip
        like = learner.vector
        learner.state = {name: value.to(like.device, like.dtype) for name, value in found.items()}

    def answer(self, net, x, state, stage):
        output = net(x)
        if "rows" not in state:
            return output
        return output._replace(logits=output.features @ state["rows"].T + state["bias"])
