"""What generators draw: what is stored after every stage, and how a report shows it."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import engram
from engram.probes.generated_samples import _to_bytes
from engram.report import build, from_directories, from_result
from engram.report.report_data import build_report_data
from engram.report.sections import build_sections, choose_methods

DGR = {"name": "DGR", "width": 16, "noise": 4}
LGR = {"name": "LGR", "width": 16, "noise": 4, "root_iterations": 4}


def digits(**options):
    stream = engram.class_incremental(engram.load("digits"), classes_per_task=4)
    settings = {"model": {"name": "mlp", "hidden": [16]}, "iterations": 4} | options
    return engram.run(stream, **settings)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("generated")
    return digits(method=[DGR, LGR, "Finetune"], seeds=2, out=out), out


def test_pictures_of_every_stage_and_what_they_are_called(result):
    found, _ = result
    runs = {name: found.select(label=name).runs for name in found.labels}
    dgr, lgr, _ = runs
    assert (dgr[:3], lgr[:3]) == ("DGR", "LGR")
    drawing = {tuple(run) for name in (dgr, lgr) for run in runs[name]}
    assert {key[:3] for key, _ in found.stored} == drawing
    for run in runs[lgr]:
        for stage in range(3):
            arrays = found.arrays("generated", run, stage=stage)
            assert set(arrays) == {"drawn"}  # a latent is no picture
            assert set(arrays["drawn"]) <= set(range(min(10, 4 * stage + 4)))
    for run in runs[dgr]:
        for stage in range(3):
            arrays = found.arrays("generated", run, stage=stage)
            assert arrays["pictures"].dtype == np.uint8
            assert arrays["pictures"].shape == (6, 1, 8, 8)
            assert set(arrays["drawn"]) <= set(range(min(10, 4 * stage + 4)))
            assert arrays["drawn"].shape == (256,)
            assert arrays["drawn"][:6].tolist() == arrays["classes"].tolist()
    assert not found.frame()["metric"].astype(str).str.startswith("generated").any()


def with_pictures(found):
    return [run for run in found.runs if "pictures" in found.stored.get((*run, 0), "generated")]


def test_runs_and_stages_have_pictures_of_their_own(result):
    found, _ = result
    runs = with_pictures(found)
    drawn = [found.arrays("generated", r, stage=k)["pictures"] for r in runs for k in range(3)]
    assert len({one.tobytes() for one in drawn}) == 6


def test_alone_and_in_lockstep_they_are_the_same():
    both = [digits(method=DGR, seeds=2, together=together) for together in (True, False)]
    for run in (0, 1):
        together, alone = (one.arrays("generated", run, stage=2) for one in both)
        near = np.abs(together["pictures"].astype(int) - alone["pictures"].astype(int))
        assert near.max() <= 1


class Constant(nn.Module):
    """Draws the first number of its code into every pixel."""

    noise = 3

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.unused = nn.Parameter(torch.zeros(1))

    def decode(self, z):
        return z[:, :1, None, None].sigmoid().expand(-1, *self.shape) + 0 * self.unused


@dataclass(frozen=True)
class OwnGenerator(engram.Method):
    shape: tuple[int, ...] = field(default=(1, 8, 8))

    def networks(self, stream):
        return {"painter": Constant(self.shape)}

    def loss(self, net, batch, state):
        return {"task": net.task(batch)}


def test_generators_of_own_methods_are_asked():
    found = digits(method=OwnGenerator())
    first, last = (found.arrays("generated", stage=k)["pictures"] for k in (0, 2))
    assert np.array_equal(first, last)  # the same codes after every stage
    shades = first.reshape(6, -1)
    assert (shades == shades[:, :1]).all()
    assert len(np.unique(shades)) == 6


def test_what_draws_no_inputs_is_left_alone():
    found = digits(method=OwnGenerator(shape=(16, 1, 1)))
    assert len(found.stored) == 0


def test_numbers_are_no_pictures():
    found = engram.run(engram.load("blobs"), method=DGR, iterations=2)
    assert set(found.arrays("generated", stage=1)) == {"drawn"}


def test_scaling_is_undone_and_large_pictures_shrink():
    data = engram.Data.from_arrays(torch.zeros(5, 1, 2, 2), [0] * 5, mean=(0.5,), std=(0.25,))
    assert _to_bytes(torch.tensor([[[[-2.0, 0.0], [2.0, 4.0]]]]), data).tolist() == [
        [[[0, 128], [255, 255]]]
    ]
    plain = engram.load("digits")
    large = torch.zeros(1, 1, 100, 100)
    large[..., ::2, :] = 1.0
    assert _to_bytes(large, plain).unique().tolist() == [128]
    assert _to_bytes(large, plain).shape == (1, 1, 50, 50)
    assert _to_bytes(large[..., :50, :50], plain).shape == (1, 1, 50, 50)


def test_the_report_shows_them_stage_by_stage(result, tmp_path):
    found, out = result
    inputs = from_directories(out)
    facts = build_report_data(inputs)
    sections = {one.name: one for one in build_sections(facts, choose_methods(facts))}
    panel, dgr, lgr = sections["generated"].panels
    assert [one.label[:3] for one in (panel, dgr, lgr)] == ["DGR", "DGR", "LGR"]
    for one in (dgr, lgr):
        shares = np.asarray(one.figure.data[0].z)
        assert shares.shape[0] == 3
        assert shares.sum(1) == pytest.approx(1.0)
    source = panel.figure.data[0].source.removeprefix("data:image/png;base64,")
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))
    first = min(with_pictures(found))
    for stage in range(3):
        pictures = found.arrays("generated", first, stage=stage)["pictures"]
        top = stage * (8 + 3)
        for column, picture in enumerate(pictures):
            shown = sheet[top : top + 8, 9 * column : 9 * column + 8]
            assert (shown[..., :3] == picture[0][..., None]).all()
            assert (shown[..., 3] == 255).all()
    page = build(inputs, tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="generated-section"' in page


def test_a_report_without_generators_has_no_such_section():
    facts = build_report_data(from_result(digits(method="Finetune")))
    assert "generated" not in {one.name for one in build_sections(facts, choose_methods(facts))}
