"""The section on generators: pictures drawn after each stage, and shares of classes."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from engram.records.probe_arrays import GeneratedPictures
from engram.report.figures import COLOR_SCALE, empty_figure
from engram.report.method_styles import as_plot_text, shorten
from engram.report.report_data import ReportData
from engram.report.section_types import DrawnMethods, Panel, Section

MOST_STAGES = 10
ROW_GAP = 0.32  # between rows, as a share of a picture's height: room for names
ROW_HEIGHT = 76  # height of a row on the page

Pixels = npt.NDArray[np.uint8]


def generated_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Show pictures by method and stage; None without generators."""
    panels = []
    for number, name in enumerate(cast.names):
        own = [one for one in digest.pictures if digest.names.get(one.recipe) == name]
        shown = [one for one in own if one.pictures is not None]
        if shown:
            figure = draw_picture_rows(_pick_stages(shown), digest.classes, name)
            panels.append(Panel(f"generated-{number + 1}", name, figure, label=name))
        counted = [one for one in own if one.drawn is not None]
        if counted:
            figure = draw_share_map(_pick_stages(counted), digest.classes, name)
            title = f"{name}: classes of {len(counted[0].drawn)} samples"  # type: ignore[arg-type]
            panels.append(Panel(f"drawn-{number + 1}", title, figure, label=name))
    if not panels:
        return None
    text = (
        "Samples from the generator of each method after each stage, always from the same latent "
        "codes. Below each image: the class that the method's network predicts, and the fraction "
        "of a large sample that it assigns to that class. Classes that a generator no longer "
        "produces are not replayed. Generators of latents have no images to show. First seed and "
        "order."
    )
    return Section("generated", "Generated images", text, tuple(panels))


def _pick_stages(own: Sequence[GeneratedPictures]) -> list[GeneratedPictures]:
    """All stages, or evenly spread ones with the first and the last."""
    if len(own) <= MOST_STAGES:
        return list(own)
    return [own[i] for i in np.linspace(0, len(own) - 1, MOST_STAGES).round().astype(int)]


def draw_share_map(
    own: Sequence[GeneratedPictures], classes: Mapping[int, str], name: str
) -> go.Figure:
    """Draw the share of samples predicted as each class (columns) after each stage (rows)."""
    drawn = [np.asarray(one.drawn) for one in own]
    known = np.unique(np.concatenate(drawn))
    shares = np.array([[float((one == cls).mean()) for cls in known] for one in drawn])
    words = [as_plot_text(shorten(classes.get(int(cls), str(cls)), 16)) for cls in known]
    figure = empty_figure("what the network calls it", "after stage", height=120 + 26 * len(own))
    figure.add_trace(
        go.Heatmap(
            z=shares,
            x=words,
            y=[str(one.stage + 1) for one in own],
            zmin=0,
            zmax=1,
            colorscale=COLOR_SCALE,
            showscale=False,
            xgap=2,
            ygap=2,
            meta={"label": name, "head": ""},
            hovertemplate="stage %{y}, %{x}<br>%{z:.3f} of the samples<extra></extra>",
        )
    )
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(type="category", showgrid=False)
    return figure


def draw_picture_rows(
    own: Sequence[GeneratedPictures], classes: Mapping[int, str], name: str
) -> go.Figure:
    """Draw a row of pictures for each stage."""
    rows = [
        PictureRow(
            str(one.stage + 1), np.asarray(one.pictures),
            [classes.get(int(cls), str(cls)) for cls in np.asarray(one.classes)],
        )
        for one in own
    ]  # fmt: skip
    figure = draw_picture_sheet(rows, "after stage")
    figure.update_traces(meta={"label": name, "head": ""})
    return figure


class PictureRow(NamedTuple):
    """Pictures beside each other, [n, C, H, W], with a title and words below each."""

    title: str
    pictures: Pixels
    words: Sequence[str]


def draw_picture_sheet(rows: Sequence[PictureRow], axis: str) -> go.Figure:
    """Draw rows of pictures of one size as one image, with words below each."""
    count = max(len(row.pictures) for row in rows)
    high, wide = rows[0].pictures.shape[2:]
    down, right = high + max(1, round(ROW_GAP * high)), wide + max(1, wide // 16)
    sheet = np.zeros((down * len(rows), right * count - (right - wide), 4), np.uint8)
    figure = go.Figure()
    for place, row in enumerate(rows):
        for column, (picture, words) in enumerate(zip(row.pictures, row.words, strict=True)):
            top, left = place * down, column * right
            sheet[top : top + high, left : left + wide] = _to_rgba(picture)
            figure.add_annotation(
                x=left + wide / 2 - 0.5, y=top + high - 0.5, showarrow=False,
                text=as_plot_text(shorten(words, 11)), yanchor="top", font={"size": 9}, borderpad=0,
            )  # fmt: skip
    figure.add_trace(go.Image(source=_png_address(sheet), hoverinfo="skip"))
    middle = [place * down + high / 2 - 0.5 for place in range(len(rows))]
    figure.update_layout(
        template=go.layout.Template(), height=ROW_HEIGHT * len(rows) + 24, showlegend=False,
        margin={"l": 52, "r": 8, "t": 8, "b": 8},
    )  # fmt: skip
    figure.update_xaxes(visible=False, constrain="domain")
    figure.update_yaxes(
        title={"text": axis, "standoff": 8}, tickvals=middle, showgrid=False, automargin=True,
        ticktext=[as_plot_text(row.title) for row in rows], zeroline=False, constrain="domain",
    )  # fmt: skip
    return figure


def _to_rgba(picture: Pixels) -> Pixels:
    """Convert a grey or colour picture [C, H, W] to [H, W, 4]."""
    colours = np.broadcast_to(picture, (3, *picture.shape[1:])).transpose(1, 2, 0)
    opaque = np.full((*colours.shape[:2], 1), 255, np.uint8)
    return np.concatenate([colours, opaque], axis=2)


def _png_address(pixels: Pixels) -> str:
    """Encode pixels as a PNG data URL."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
