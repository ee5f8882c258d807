from __future__ import annotations

import pandas as pd
import pytest

from engram.report import diagnose
from engram.report.report_tables import select_own_views


def rows(metric, values, **place):
    base = {"recipe": "0", "label": "EWC", "seed": 0, "order": "", "stage": 1, "step": -1,
            "task": -1, "cls": -1, "head": "", "metric": metric}  # fmt: skip
    return pd.DataFrame([{**base, **place, "value": v} for v in values])


def three_seeds(frame):
    return pd.concat([frame.assign(seed=s) for s in range(3)])


def texts(frame):
    return [finding.text for finding in diagnose(three_seeds(frame))]


def test_healthy_run_has_no_findings(frame_of):
    assert diagnose(frame_of()) == []


def test_empty_frame():
    assert diagnose(rows("accuracy", [0.5]).head(0)) == []


@pytest.mark.parametrize("size, complains", [(0.0, "is zero"), (500.0, "1,000 times"), (1.0, "")])
def test_loss_terms(size, complains):
    found = texts(pd.concat([rows("loss/task", [0.5], step=9), rows("loss/ewc", [size], step=9)]))
    assert len(found) == bool(complains)
    assert all("“ewc”" in text and complains in text for text in found)


def test_penalty_may_be_zero_in_the_first_stage():
    frame = pd.concat([rows("loss/ewc", [0.0], stage=0, step=9), rows("loss/task", [1.0], step=9)])
    assert texts(frame) == []


def test_class_never_predicted_counts_only_learnt_ones():
    seen = pd.concat(
        [rows("class_accuracy", [0.5], cls=c, task=c, head="single") for c in range(3)]
    )
    said = pd.concat(
        [rows("predicted", [v], cls=c, head="single") for c, v in [(0, 1.0), (1, 0.0)]]
    )
    assert texts(pd.concat([seen, said])) == [
        "In 3 runs some learnt classes are never predicted after the last stage "
        "(single-head view): 1."
    ]


def test_streams_are_judged_by_the_view_they_are_about():
    frame = pd.concat([rows("predicted", [0.0], cls=0, head=head) for head in ("single", "multi")])
    recipes = {"0": {"stream": {"head": "multi"}}}
    assert select_own_views(frame, recipes)["head"].tolist() == ["multi"]
    assert len(select_own_views(frame, {})) == 2
    assert len(select_own_views(rows("diverged", [1.0]), recipes)) == 1


@pytest.mark.parametrize("counts, complains", [((50, 25), False), ((50, 24), True), ((5, 0), True)])
def test_memory_balance(counts, complains):
    frame = pd.concat([rows("memory_count", [n], cls=c) for c, n in enumerate(counts)])
    assert ["unbalanced in 3 of 3 runs" in t for t in texts(frame)] == [True] * complains


def test_a_memory_need_not_hold_classes_to_come():
    held = pd.concat([rows("memory_count", [n], cls=c) for c, n in enumerate((50, 50, 0))])
    seen = rows("class_accuracy", [0.5], cls=2, task=2, stage=1, head="single")
    assert texts(pd.concat([held, seen])) == []
    met = rows("class_accuracy", [0.5], cls=2, task=1, stage=1, head="single")
    assert "between 0 and 50 items" in texts(pd.concat([held, met]))[0]


def test_only_the_last_memory_counts():
    early = pd.concat([rows("memory_count", [n], cls=c, stage=0) for c, n in enumerate((50, 1))])
    late = pd.concat([rows("memory_count", [n], cls=c, stage=1) for c, n in enumerate((50, 50))])
    assert texts(pd.concat([early, late])) == []


def test_batchnorm_drift():
    assert texts(rows("bn_drift", [0.5])) == []
    assert "drifted by up to 3.2" in texts(rows("bn_drift", [0.5, 3.2]))[0]


def test_percentages_are_an_error():
    found = diagnose(three_seeds(rows("accuracy", [93.0], task=0, stage=0, head="single")))
    assert found[0].severity == "error"
    assert "outside 0 to 1" in found[0].text


def test_few_runs_and_divergence_worst_first():
    frame = pd.concat([rows("diverged", [1.0]), rows("seconds", [1.0], seed=1)])
    assert [f.severity for f in diagnose(frame)] == ["error", "note"]
    assert diagnose(frame)[0].text == "1 of 2 runs diverged (first at stage 2)."


def test_unfinished_runs():
    whole = [
        rows("accuracy", [0.5], stage=s, task=t, head="single") for s in range(2) for t in range(2)
    ]
    short = rows("accuracy", [0.5], stage=0, task=0, head="single", seed=9)
    found = diagnose(pd.concat([three_seeds(pd.concat(whole)), short]))
    assert ["1 run stopped before the last stage" in f.text for f in found] == [True]


def test_what_holds_for_many_is_said_once():
    frame = pd.concat([rows("seconds", [1.0], label=f"m{i}") for i in range(11)])
    assert [f.label for f in diagnose(frame)] == ["11 methods"]
    assert len(diagnose(frame[frame["label"] != "m0"])) == 10


@pytest.mark.parametrize("sizes, items, complains", [
    ((100.0, 200.0, 300.0), 0, True), ((100.0, 300.0, 300.0), 0, False),
    ((100.0, 200.0, 300.0), 5, False), ((0.0, 300.0), 0, False),
])  # fmt: skip
def test_what_lies_outside_the_memory_is_seen_to_grow(sizes, items, complains):
    parts = [rows("state_bytes", [n], stage=k) for k, n in enumerate(sizes)]
    parts += [rows("memory_items", [items], stage=k) for k in range(len(sizes))]
    found = [text for text in texts(pd.concat(parts)) if "stores grows" in text]
    assert len(found) == complains
    assert all("method state from 100 B to 300 B" in text for text in found)
