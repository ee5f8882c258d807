from __future__ import annotations

import numpy as np
import pytest

from engram.data import Data, load
from engram.errors import BadArgument
from engram.reproduce import find_table
from engram.reproduce.papers import PAPER_NAMES, cgl_paper, confer_paper, paper_base, rwalk_paper
from engram.reproduce.table_registry import _load_paper


def images(classes, channels=1, names=()):
    x = np.zeros((2 * classes, channels, 8, 8), np.uint8)
    y = np.arange(2 * classes) % classes
    return Data.from_arrays(x, y, test=(x, y), classes=names or None, name="mine")


def test_every_data_set_of_the_papers_is_of_a_known_kind():
    for paper in PAPER_NAMES:
        assert set(_load_paper(paper).paper.official.values()) <= set(paper_base.KINDS)


@pytest.mark.parametrize(
    ("classes", "per_task"),
    [(10, 2), (26, 2), (15, 3), (5, 1)],  # as in the paper, or as many tasks
)
def test_tasks_of_other_data(classes, per_task):
    moved = rwalk_paper.PAPER.on(images(classes))
    assert (moved.mnist.data, moved.mnist.classes) == ("mine", classes)
    assert moved.mnist.classes_per_task == per_task
    assert moved.cifar is None
    assert moved.mnist.lr == rwalk_paper.PAPER.mnist.lr


def test_kinds_choose_the_protocol():
    moved = rwalk_paper.PAPER.on(images(20, channels=3))
    assert moved.mnist is None
    assert moved.cifar.classes_per_task == 10
    with pytest.raises(BadArgument, match="go into tasks of 2, or into 5 equal tasks"):
        rwalk_paper.PAPER.on(images(7))
    with pytest.raises(BadArgument, match="expected grey images, which"):  # no CIFAR-100 there
        rwalk_paper.EMBEDDED.on(images(20, channels=3))


def test_skeletons_need_ten_classes():
    moved = cgl_paper.PAPER.on(load("skeletons"))
    assert (moved.ucla.data, moved.ucla.edges, moved.ntu) == ("skeletons", "ucla", None)
    made = cgl_paper.recipe(moved, cgl_paper.UCLA, "BARE")
    assert "data_options" not in made.stream  # its reader need not turn any
    few = Data.from_arrays(np.zeros((4, 3, 6, 20), np.float32), np.arange(4) % 2, name="few",
                           test=(np.zeros((2, 3, 6, 20), np.float32), np.arange(2)))  # fmt: skip
    with pytest.raises(BadArgument, match="a set of 10 classes, got 'few with 2'"):
        cgl_paper.PAPER.on(few)


def test_faces_need_the_expressions():
    moved = confer_paper.PAPER.on(load("faces", samples=200))
    assert (moved.ck.data, moved.ck.size, moved.ck.contempt) == ("faces", 32, True)
    assert not moved.raf.contempt
    assert list(moved.affectnet.conditions) == ["original"]
    assert moved.ck.batch_size == confer_paper.PAPER.ck.batch_size
    names = ["Neutral", "Anger", "Disgust", "Happiness", "Sadness"]
    with pytest.raises(BadArgument, match="with the classes Fearful, Surprised as well"):
        confer_paper.PAPER.on(images(5, names=names))


def test_the_papers_own_data_changes_nothing(engram_data):
    table = find_table("rwalk/1", on="mnist", root=engram_data)
    assert table.preset.mnist == rwalk_paper.PAPER.mnist
    assert table.preset.cifar is None
