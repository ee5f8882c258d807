"""The picture in the README, from the records of the demonstration.

``engram demo --out runs/demo``, then ``python docs/make_picture.py runs/demo``.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import numpy as np

from engram.records import Result, read

PANELS = {
    "Finetune": "Plain training (Finetune)",
    "ER": "Replay of 100 exemplars (ER)",
}
COLOURS = ("#1b5e9b", "#c4541c", "#2e7d4f", "#8a3a8f", "#7a6a1f")
WIDTH, HEIGHT = 380, 250  # of one panel
LEFT, TOP, RIGHT, BOTTOM = 46, 60, 74, 40
NAME = 14  # height of a line's name
INK, LINE = "#1d2125", "#dfddd7"


def picture(result: Result) -> str:
    """Accuracy of every task after every stage, one panel for each method."""
    panels = [panel(result, label, place) for place, label in enumerate(PANELS)]
    width = WIDTH * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'width="{width}" height="{HEIGHT}" font-family="sans-serif" font-size="12" '
        f'fill="{INK}">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def panel(result: Result, label: str, place: int) -> str:
    """One method: its axes, and a line for each task from the stage that taught it."""
    runs = result.select(label=label).matrix  # [runs, stage, task]
    mean, low, high = runs.mean(0), runs.min(0), runs.max(0)
    tasks = mean.shape[1]
    title = escape(PANELS[label])
    below = f"accuracy by pair of digits; in the end {mean[-1].mean():.0%}"
    parts = [
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{title}</text>',
        f'<text x="{LEFT}" y="42">{below}</text>',
    ]
    parts += axes(tasks)
    for task in range(tasks):
        colour = COLOURS[task % len(COLOURS)]
        stages = range(task, tasks)
        band = [at(s, high[s, task], tasks) for s in stages]
        band += [at(s, low[s, task], tasks) for s in reversed(stages)]
        line = [at(s, mean[s, task], tasks) for s in stages]
        parts.append(f'<polygon points="{points(band)}" fill="{colour}" opacity="0.15"/>')
        parts.append(
            f'<polyline points="{points(line)}" fill="none" stroke="{colour}" stroke-width="2.2"/>'
        )
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in line]
    parts += names(mean[-1])
    return f'<g transform="translate({WIDTH * place} 0)">\n' + "\n".join(parts) + "\n</g>"


def at(stage: int, accuracy: float, tasks: int) -> tuple[float, float]:
    """Where a point lies."""
    x = LEFT + (WIDTH - LEFT - RIGHT) * stage / (tasks - 1)
    return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * float(accuracy)


def points(line: list[tuple[float, float]]) -> str:
    """As SVG writes them."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in line)


def axes(tasks: int) -> list[str]:
    """Grid and numbers."""
    parts = []
    for percent in (0, 50, 100):
        left, y = at(0, percent / 100, tasks)
        right, _ = at(tasks - 1, 0, tasks)
        parts.append(f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="{LINE}"/>')
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{percent}%</text>')
    for stage in range(tasks):
        x, y = at(stage, 0, tasks)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{stage + 1}</text>')
    x, y = at(0, 0, tasks)
    parts.append(f'<text x="{x:.1f}" y="{y + 34:.1f}">tasks learnt so far</text>')
    return parts


def names(ends: np.ndarray) -> list[str]:
    """What each line is, at its end; names that would overlap are moved apart."""
    tasks, parts, free = len(ends), [], HEIGHT - BOTTOM + 4.0
    for task in np.argsort(ends, kind="stable"):  # from the bottom
        x, y = at(tasks - 1, ends[task], tasks)
        above = int((ends > ends[task]).sum())
        y = min(max(y + 4, TOP + 4 + NAME * above), free)
        what, colour = f"{2 * task} and {2 * task + 1}", COLOURS[task % len(COLOURS)]
        parts.append(f'<text x="{x + 9:.1f}" y="{y:.1f}" fill="{colour}">{what}</text>')
        free = y - NAME
    return parts


if __name__ == "__main__":
    target = Path(__file__).parent / "images" / "forgetting.svg"
    target.write_text(picture(read(sys.argv[1])), encoding="utf-8")
