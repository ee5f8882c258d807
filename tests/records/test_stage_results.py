from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engram.records import EvaluationItems, Rows, head_views, record_stage
from tests.records.synthetic import make_items, make_scores


def by_hand(
    scores: np.ndarray, items: EvaluationItems, stage: int, average: str
) -> list[tuple[object, ...]]:
    """The rows of a stage as (metric, head, task, cls, value), one number at a time."""
    found: list[tuple[object, ...]] = []
    task, label = items.task, items.targets[:, 0]
    for head in head_views.HEADS:
        said = head_views.predict(scores.astype(np.float32), items, stage=stage, head=head)
        cells = [
            (t, c, np.mean(said[(task == t) & (label == c)] == c))
            for t in range(items.tasks)
            for c in range(items.width)
            if ((task == t) & (label == c)).any()
        ]
        for t in range(items.tasks):
            own = [value for at, _, value in cells if at == t]
            micro = np.mean((said == label)[task == t])
            found.append(("accuracy", head, t, -1, micro if average == "micro" else np.mean(own)))
        found += [("class_accuracy", head, t, items.classes[c], value) for t, c, value in cells]
        opened = [c for c in range(items.width) if items.opening[c] <= stage]
        seen = said[task <= stage]
        found += [("predicted", head, -1, items.classes[c], np.mean(seen == c)) for c in opened]
    if stage == 0:
        found += [
            ("class_count", "", t, items.classes[c], ((task == t) & (label == c)).sum())
            for t, c, _ in cells
        ]
    return found


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_every_row_of_runs_that_take_turns(average: str) -> None:
    # runs with other items and stages in between must not leave their layout behind
    streams = [make_items(tasks=t, width=w) for t, w in ((3, 2), (2, 1), (2, 3))]
    for stage in (0, 1):
        for seed in range(2):
            for items in streams:
                scores = make_scores(items, seed)
                rows = Rows(recipe="r", seed=seed)
                record_stage(rows, scores, items, stage=stage, average=average)
                frame = rows.frame()
                expected = by_hand(scores, items, stage, average)
                wanted = pd.DataFrame(expected, columns=["metric", "head", "task", "cls", "value"])
                for name in ("metric", "head", "task", "cls"):
                    assert frame[name].tolist() == wanted[name].tolist()
                assert frame["value"].tolist() == pytest.approx(wanted["value"].tolist())
                assert set(frame["stage"]) == {stage}
                assert set(frame["seed"]) == {seed}


def test_what_was_recorded_is_not_shared() -> None:
    items = make_items()
    first, second = Rows(recipe="r"), Rows(recipe="r")
    record_stage(first, make_scores(items, 0), items, stage=0)
    before = first.frame()
    for chunk in first._chunks:
        for column in chunk.values():
            if isinstance(column, np.ndarray):
                column[...] = 0
    record_stage(second, make_scores(items, 0), items, stage=0)
    pd.testing.assert_frame_equal(second.frame(), before)
