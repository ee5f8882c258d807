"""Pictures of streams: what is drawn is what tasks hold."""

from __future__ import annotations

import base64
import io

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

import engram
from tests.refusals import refuses


@pytest.fixture(scope="module")
def digits():
    return engram.load("digits")


@pytest.fixture(scope="module")
def tree(digits):
    below = {"small": ["tiny", "0"], "tiny": ["1", "2"], "large": ["7", "8"]}
    tasks = [["small", "large"], ["tiny", "7"], ["0", "8"], ["1", "2"], ["3"]]
    return engram.hierarchical(digits, hierarchy=below, tasks=tasks)


def sheet(figure):
    """Pixels of a figure that is one image, in grey."""
    (trace,) = figure.data
    code = trace.source.partition(",")[2]
    return np.array(Image.open(io.BytesIO(base64.b64decode(code))).convert("RGBA"))


def test_samples_are_training_rows_of_each_task(digits):
    stream = engram.class_incremental(digits, classes_per_task=5)
    figure = stream.plot()
    assert isinstance(figure, go.Figure)
    words = [one.text for one in figure.layout.annotations]
    assert words[:10] == [str(c) for c in (*range(5), *range(5))]
    assert words[10:20] == [str(c) for c in (*range(5, 10), *range(5, 10))]
    shown = sheet(figure)[:8, :8, 0]
    train = stream.tasks[0].train
    zeros = digits.stored(train[digits.labels[train] == 0][:1])[0, 0].numpy()
    np.testing.assert_array_equal(shown, zeros)


def test_permutations_and_rotations_are_shown_on_an_image(digits):
    turned = sheet(engram.rotated(digits, angles=(0, 90)).plot())
    before, after = turned[:8, :8, :3], turned[:8, 9:17, :3]
    np.testing.assert_array_equal(after, np.rot90(before))
    stream = engram.permuted(digits, tasks=3)
    mixed = sheet(stream.plot("views"))
    first, second = mixed[11:19, :8, :3], mixed[11:19, 9:17, :3]  # the chart of places
    source = stream.view.table[1].reshape(8, 8).numpy()
    np.testing.assert_array_equal(second, first.reshape(64, 3)[source])
    assert len({tuple(one) for one in first.reshape(64, 3)}) == 64  # each place has its colour


def test_rows_of_each_label(tree):
    figure = tree.plot("rows")
    train = next(one for one in figure.data if one.name == "train")
    assert list(train.y) == list(tree.train_sizes)
    counts = np.array(next(one for one in figure.data if one.type == "heatmap").z, float)
    shown = tree.used_in_training.numpy()
    assert np.isnan(counts[~shown.T]).all()
    task, own = tree.tasks[1], tree.tasks[1].new[1]
    expected = int((tree.data.y[task.train] == own).any(dim=1).sum())
    assert counts[tree.order.index(own), 1] == expected > 0


def test_a_tree_has_every_label_in_the_colour_of_its_task(tree):
    figure = tree.plot()
    lines, *tasks = figure.data
    names = [list(one.text) for one in tasks]
    assert [sorted(one) for one in names] == [
        ["large", "small"], ["7", "tiny"], ["0", "8"], ["1", "2"], ["3"]
    ]  # fmt: skip
    assert len({one.marker.color for one in tasks}) == 5
    assert (
        list(lines.x).count(None) == len(tree.order) - 3
    )  # all but those at the top hang below one
    at = {name: (x, y) for one in tasks for name, x, y in zip(one.text, one.x, one.y, strict=True)}
    assert at["tiny"][0] == at["small"][0] + 1 == at["1"][0] - 1
    assert len({y for x, y in at.values() if x == 2.0}) == 2


def test_data_without_images_or_tree_show_rows():
    stream = engram.class_incremental(engram.load("blobs"))
    assert {one.type for one in stream.plot().data} == {"bar", "heatmap"}
    for name in ("samples", "views", "tree", "rowz"):
        with refuses("name"):
            stream.plot(name)


def test_views_need_a_view(digits):
    with refuses("name"):
        engram.class_incremental(digits).plot("views")
