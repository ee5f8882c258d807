"""Sets of labels: a method that says it can decide them learns every label of a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from engram import metrics
from engram.checks.report import DoesNotApply, require
from engram.checks.tamed import tame
from engram.checks.toys import EXACT, SIZES, After, clouds, runs_of, train
from engram.engine.evaluation.evaluate import test_items
from engram.methods.base import DECISIONS, Method
from engram.streams.core import Stream, Task

LEARNS = replace(EXACT, optimizer="adam", lr=0.01, epochs=30)
ENOUGH = 0.7  # one of the two labels of each row, and nothing else, gives 0.5


def label_sets() -> Stream:
    """Three tasks of two classes each; every row has its class, and one of two labels for all."""
    plain = clouds()
    own, count = plain.labels, len(SIZES)
    shared = count + own % 2
    data = replace(
        plain, y=torch.stack([own, shared], 1), classes=tuple(map(str, range(count + 2)))
    )
    both, tasks = (count, count + 1), []
    for first in range(0, count, 2):
        pair = (first, first + 1)
        train_rows, test = (
            part[torch.isin(own[part], torch.tensor(pair))] for part in (data.train, data.test)
        )
        new = pair if first else (*pair, *both)
        tasks.append(Task(train=train_rows, test=test, new=new, visible=(*pair, *both)))
    return Stream(data=data, tasks=tuple(tasks))


def score(after: After) -> float:
    """Precision-weighted Jaccard score of the task just learnt, over all classes open by then."""
    stream, now = after.stage.learner.stream, after.stage.stage
    rows, stages = test_items(stream)
    mine = (stages == now).numpy()
    columns = np.arange(len(stream.order))
    truth = (stream.targets[rows][:, :, None].numpy() == columns).any(1)
    said = (after.scores > 0) & (stream.opening <= now).numpy()
    return float(metrics.precision_weighted_jaccard(truth[mine], said[mine]))


def check_label_sets(method: Method) -> None:
    """Where rows carry two labels, both are learnt; or the method says it decides by argmax."""
    if DECISIONS["set"] not in method.decides:
        raise DoesNotApply("it decides by argmax, so streams with label sets are refused")
    trained = train(runs_of(tame(method, LEARNS), [label_sets()], training=LEARNS))
    found = score(trained[0, 0])  # of the first task: later ones have a past to be kept
    require(
        found > ENOUGH,
        "it declares a threshold on its scores, but after the first task the labels above 0 have a "
        f"precision-weighted Jaccard score of {found:.2f} (one right label of two: 0.50): use "
        "net.task or a loss with a yes or no for each label of batch.y, or leave "
        "decides = ('argmax',)",
    )
    require(max(trained)[1] == 2, "the run ended early")
