"""`plot_stream`, which implements `Stream.plot`: samples, numbers of rows, views, label trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engram.errors import bad, check_choice
from engram.report.figures import COLOR_SCALE, empty_figure
from engram.report.generated_figures import PictureRow, Pixels, draw_picture_sheet
from engram.report.method_styles import PALETTE, as_plot_text, shorten
from engram.report.notebook_figures import NotebookFigure
from engram.report.static_images import AXIS_SPACE, INK, LINE, place_legend
from engram.streams.class_tree import FINE_PREFIX, SUPER_PREFIX, find_parents

if TYPE_CHECKING:
    from torch import Tensor

    from engram.streams import Stream, Task

PICTURES = ("samples", "rows", "views", "tree")
MOST_TASKS = 12  # rows or columns of pictures
MOST_SAMPLES = 10  # pictures of a task
MOST_LABELS = 60  # names along an axis
PARTS = {"train": PALETTE[0], "valid": PALETTE[4], "post_valid": PALETTE[3], "test": PALETTE[6]}


def plot_stream(stream: Stream, name: str | None = None) -> go.Figure:
    """Draw a picture of a stream; see `Stream.plot`.

    Examples
    --------
    >>> import engram
    >>> stream = engram.rotated(engram.load("digits"), angles=(0, 45))
    >>> plot_stream(stream).layout.title.text
    'rotated: what each task does to an image'
    """
    chosen = _choose_picture(stream) if name is None else check_choice("name", name, PICTURES)
    if chosen in ("samples", "views") and not _has_images(stream):
        expected = "rows or tree, since these rows are no images"
        raise bad("name", expected, chosen)
    draw = {"samples": draw_samples, "rows": draw_rows, "views": draw_views, "tree": draw_tree}
    figure, title = draw[chosen](stream)
    figure.update_layout(
        title={"text": as_plot_text(shorten(f"{stream.name}: {title}", 80)), "x": 0.02,
               "font": {"size": 16}},
        paper_bgcolor="#ffffff", plot_bgcolor="#ffffff", font={"color": INK, "size": 13},
        margin={**figure.layout.margin.to_plotly_json(), "t": 56}, height=figure.layout.height + 44,
    )  # fmt: skip
    figure.update_xaxes(gridcolor=LINE, linecolor=LINE)
    figure.update_yaxes(gridcolor=LINE, linecolor=LINE)
    return NotebookFigure(figure)


def _choose_picture(stream: Stream) -> str:
    if find_parents(stream.data):
        return "tree"
    if not _has_images(stream):
        return "rows"
    return "views" if stream.view is not None else "samples"


def _has_images(stream: Stream) -> bool:
    """Whether samples are grey or colour images, of bytes or from 0 to 1."""
    shape = stream.data.sample_shape
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
        return False
    first = stream.data.gather(stream.tasks[0].train[:50])
    return str(first.dtype).endswith("uint8") or bool(((first >= 0) & (first <= 1)).all())


def _spread(count: int, most: int) -> list[int]:
    """All numbers below `count`, or `most` evenly spread ones with the first and the last."""
    places = np.linspace(0, count - 1, min(count, most)).round()
    return sorted({int(place) for place in places})


# -- images ----------------------------------------------------------------------------------------


def draw_samples(stream: Stream) -> tuple[go.Figure, str]:
    """Draw training images of each task, from each of its labels in turn."""
    rows = []
    for stage in _spread(len(stream), MOST_TASKS):
        task = stream.tasks[stage]
        chosen = _pick_rows(stream, task)
        names = [_row_name(stream, task, int(row)) for row in chosen]
        pictures = _as_networks_see(stream, stream.data.gather(chosen), stage)
        rows.append(PictureRow(_task_name(stage, task), pictures, names))
    return draw_picture_sheet(rows, "task"), "training samples of each task"


def _pick_rows(stream: Stream, task: Task) -> Tensor:
    """Pick training rows: the first of each label that the task shows, then the second ones."""
    import torch

    rows = task.train.cpu()
    labels = stream.data.y.cpu()[rows]
    ranks = torch.full((len(rows),), len(rows))
    for place, label in enumerate(task.shown):
        own = (labels == label).any(dim=1).nonzero()[:, 0]
        order = torch.arange(len(own)) * len(task.shown) + place
        ranks[own] = torch.minimum(ranks[own], order)
    return rows[ranks.argsort(stable=True)[:MOST_SAMPLES]]


def _row_name(stream: Stream, task: Task, row: int) -> str:
    """Return the label of a row that the task shows."""
    own = [int(c) for c in stream.data.y[row] if int(c) in task.shown]
    return _label_name(stream, own[0]) if own else ""


def _label_name(stream: Stream, label: int) -> str:
    return stream.data.classes[label].removeprefix(SUPER_PREFIX).removeprefix(FINE_PREFIX)


def _task_name(stage: int, task: Task) -> str:
    return f"{stage + 1}: {shorten(task.domain, 20)}" if task.domain else str(stage + 1)


def _as_networks_see(stream: Stream, raw: Tensor, stage: int) -> Pixels:
    """Crop the middle, apply the view of a task, and return bytes [n, C, H, W]."""
    import torch

    x = raw.cpu().float() / (255.0 if str(raw.dtype).endswith("uint8") else 1.0)
    high, wide = stream.data.sample_shape[-2:]
    top, left = (x.shape[-2] - high) // 2, (x.shape[-1] - wide) // 2
    x = x[..., top : top + high, left : left + wide]
    if stream.view is not None:
        x = stream.view(x, torch.full((len(x),), stage))
    x = x if x.ndim == 4 else x.unsqueeze(1)
    pixels: Pixels = (x.clamp(0, 1) * 255).round().byte().numpy()
    return pixels


def draw_views(stream: Stream) -> tuple[go.Figure, str]:
    """Draw one image, and a chart of its pixels, as each task transforms them."""
    import torch

    if stream.view is None:
        raise bad("name", "samples, rows or tree, since no task transforms its inputs", "views")
    stages = _spread(len(stream), MOST_TASKS)
    first = stream.data.gather(stream.tasks[0].train[:1])
    high, wide = stream.data.sample_shape[-2:]
    down, right = torch.meshgrid(
        torch.linspace(0, 1, high), torch.linspace(0, 1, wide), indexing="ij"
    )
    channels = [right, 0.25 + 0.5 * (1 - down), down]  # each place of the image has its own colour
    # In all channels of a sample at once, as the view expects them.
    charts = [one.expand(1, *stream.data.sample_shape) for one in channels]
    image = np.concatenate([_as_networks_see(stream, first, stage) for stage in stages])
    chart = np.concatenate([
        np.concatenate([_as_networks_see(stream, one, stage)[:, :1] for one in charts], axis=1)
        for stage in stages
    ])  # fmt: skip
    words = [stream.tasks[stage].domain or str(stage + 1) for stage in stages]
    image = np.broadcast_to(image, (len(stages), 3, high, wide))
    rows = [PictureRow("image", image, words), PictureRow("places", chart, [""] * len(stages))]
    figure = draw_picture_sheet(rows, "")
    figure.update_layout(height=240)
    return figure, "what each task does to an image"


# -- numbers of rows -------------------------------------------------------------------------------


def draw_rows(stream: Stream) -> tuple[go.Figure, str]:
    """Draw bars of the numbers of rows of each task, above those of each label shown by it."""
    labels = list(stream.order)
    counts = _count_labels(stream)
    height = 210 + min(620, max(150, 18 * len(labels)))
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=24 / height,
        row_heights=[150, height - 210],
    )  # fmt: skip
    ticks = [_task_name(stage, task) for stage, task in enumerate(stream.tasks)]
    for part, color in PARTS.items():
        numbers = [len(getattr(task, part)) for task in stream.tasks]
        if any(numbers):
            figure.add_trace(
                go.Bar(x=ticks, y=numbers, name=part.replace("_", "-"), marker={"color": color}),
                row=1, col=1,
            )  # fmt: skip
    names = [shorten(_label_name(stream, label), 24) for label in labels]
    figure.add_trace(
        go.Heatmap(
            z=np.where(counts > 0, counts, np.nan), x=ticks, y=list(range(len(names))),
            colorscale=COLOR_SCALE, zmin=0, zmax=max(1.0, counts.max()),
            hoverongaps=False, showscale=False, xgap=2,
            ygap=1, customdata=np.repeat(np.array(names, object)[:, None], len(ticks), axis=1),
            hovertemplate="task %{x}, %{customdata}: %{z} training rows<extra></extra>",
        ),
        row=2, col=1,
    )  # fmt: skip
    shown = range(0, len(names), -(-len(names) // MOST_LABELS))
    figure.update_yaxes(title="rows", row=1, col=1)
    figure.update_yaxes(
        title="label", autorange="reversed", showgrid=False, zeroline=False, row=2, col=1,
        tickvals=list(shown), ticktext=[as_plot_text(names[i]) for i in shown],
    )  # fmt: skip
    figure.update_xaxes(type="category", showgrid=False, nticks=30)
    figure.update_xaxes(title="task", row=2, col=1)
    legend: dict[str, object] = {}
    bars = [{"type": "scatter", "name": one.name} for one in figure.data if one.type == "bar"]
    below = place_legend(legend, bars)
    figure.update_layout(
        template=go.layout.Template(), height=height + below, barmode="group",
        margin={"l": 64, "r": 24, "b": AXIS_SPACE + below}, **legend,
    )  # fmt: skip
    return figure, "rows of each task, and training rows of each label it shows"


def _count_labels(stream: Stream) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Count training rows [label, task] whose label a task uses."""
    counts = np.zeros((len(stream.order), len(stream)))
    for stage, task in enumerate(stream.tasks):
        columns = stream.targets[task.train.cpu()].cpu().numpy()
        found = np.bincount(columns[columns >= 0].ravel(), minlength=len(stream.order))
        counts[:, stage] = np.where(stream.used_in_training[stage].numpy(), found, 0)
    return counts


# -- label trees -----------------------------------------------------------------------------------


def draw_tree(stream: Stream) -> tuple[go.Figure, str]:
    """Draw the labels as a tree from left to right, in the colour of the task that adds each."""
    parents = find_parents(stream.data)
    if not parents:
        raise bad("name", "samples, rows or views, since the labels form no tree", "tree")
    place, depth = _arrange_tree(stream, parents)
    inner = set(parents.values())
    leaves = 1 + max(int(np.ceil(y)) for y in place.values())
    figure = empty_figure("", "", height=60 + 18 * leaves)
    x: list[float | None] = []
    y: list[float | None] = []
    for child, above in parents.items():
        if child in place:
            x += [depth[above], (depth[above] + depth[child]) / 2, depth[child], None]
            y += [place[above], place[child], place[child], None]
    figure.add_trace(
        go.Scatter(x=x, y=y, mode="lines", hoverinfo="skip", showlegend=False,
                   line={"color": "#B8B5AD", "width": 1})
    )  # fmt: skip
    for stage, task in enumerate(stream.tasks):
        own = [label for label in task.new if label in place]
        if own:
            names = [as_plot_text(shorten(_label_name(stream, label), 24)) for label in own]
            figure.add_trace(
                go.Scatter(
                    x=[depth[label] for label in own], y=[place[label] for label in own],
                    mode="markers+text", text=names,
                    textposition=["top center" if label in inner else "middle right"
                                  for label in own],
                    textfont={"size": 11}, name=f"task {stage + 1}", cliponaxis=False,
                    marker={"size": 10, "color": PALETTE[stage % len(PALETTE)],
                            "symbol": "square" if stage // len(PALETTE) % 2 else "circle"},
                    hovertemplate=f"%{{text}}<br>task {stage + 1}<extra></extra>",
                )
            )  # fmt: skip
    deepest = max(depth.values())
    figure.update_xaxes(visible=False, range=[-0.1, deepest + 0.7])
    figure.update_yaxes(visible=False, range=[leaves - 0.3, -0.7])
    legend: dict[str, object] = {}
    below = place_legend(legend, [one.to_plotly_json() for one in figure.data])
    figure.update_layout(
        height=figure.layout.height + below, margin={"l": 24, "r": 24, "b": below}, **legend
    )
    return figure, "labels, and the task that adds each"


def _arrange_tree(
    stream: Stream, parents: dict[int, int]
) -> tuple[dict[int, float], dict[int, float]]:
    """Place labels: leaves in lines of their own, the others in the middle of what is below."""
    children: dict[int, list[int]] = {}
    for label in stream.order:
        if label in parents:
            children.setdefault(parents[label], []).append(label)
    place: dict[int, float] = {}
    depth: dict[int, float] = {}
    lines = 0

    def visit(label: int, level: int) -> None:
        nonlocal lines
        depth[label] = float(level)
        below: Sequence[int] = children.get(label, ())
        for child in below:
            visit(child, level + 1)
        if below:
            place[label] = sum(place[child] for child in below) / len(below)
        else:
            place[label], lines = float(lines), lines + 1

    for label in stream.order:
        if label not in parents:
            visit(label, 0)
    return place, depth
