"""What detectors found novel, stage by stage, and what it cost."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from engram.report import figures
from engram.report.digest import Digest
from engram.report.section import DrawnMethods, Panel, Section
from engram.report.tables import Column, Table

SHOWN = {"combined_auroc": "C.AUC", "recent_auroc": "R.AUC", "previous_auroc": "P.AUC"}
LISTED = {
    **SHOWN, "mean_auroc": "mAUC", "inside_forgotten_detection_error": "In/Forg DER",
    "forgotten_outside_detection_error": "Forg/Out DER",
}  # fmt: skip
MOST_DETECTORS = 8
TEXT = (
    "How well each detector separates items that a method classifies correctly (inside) from "
    "items of future tasks (outside) after each stage: C.AUC over all items, R.AUC for the newest "
    "task, P.AUC for earlier ones; 0.5 is chance. The table shows means over stages."
)


def detectors_of(digest: Digest) -> list[str]:
    """Every detector that scored some run."""
    return list(dict.fromkeys(digest.novelty["detector"])) if len(digest.novelty) else []


def left_out(what: str, total: int, most: int) -> str:
    """A sentence on what is not drawn, "" if all is."""
    return f" {total - most} of {total} {what} are not shown." if total > most else ""


def novelty_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """Lines over stages; None where no detector was asked."""
    detectors = detectors_of(digest)
    if not detectors:
        return None
    table = digest.by_name(digest.novelty)
    table = table[table["name"].isin(cast.names)]
    rows = table.assign(x=table["stage"] + 1, value=table["mean"]).dropna(subset=["value"])
    panels = []
    for place, detector in enumerate(detectors[:MOST_DETECTORS]):
        for metric, short in SHOWN.items():
            own = rows[(rows["detector"] == detector) & (rows["metric"] == metric)]
            if len(own):
                name = f"novelty-{place + 1}-{metric.partition('_')[0]}"
                figure = over_stages(own, cast, short, int(rows["x"].max()))
                panels.append(Panel(name, f"{detector}: {short}", figure))
    text = TEXT + left_out("detectors", len(detectors), MOST_DETECTORS)
    if digest.tuned:
        text += f" Tuned after the first stage: {'. '.join(digest.tuned)}."
    return Section("novelty", "Novelty", text, tuple(panels))


def over_stages(rows: pd.DataFrame, cast: DrawnMethods, y: str, last: int) -> go.Figure:
    """Lines of methods over stages, shares."""
    figure = figures.lines(rows, cast.looks, x="stage", y=y, height=260)
    figure.update_xaxes(range=[0.8, last + 0.2], dtick=1 if last <= 12 else None)
    return figure


def novelty_table(digest: Digest) -> Table | None:
    """Means over stages of every detector and method, and its seconds and state."""
    if not detectors_of(digest):
        return None
    table = digest.by_name(digest.novelty)
    keys = ["name", "detector"]
    wide = table.pivot_table(index=keys, columns="metric", values="mean", sort=False)
    wide = wide.reindex(columns=list(LISTED)).join(_costs(digest))
    best = {name: "min" if name.endswith("error") else "max" for name in LISTED}
    columns = [
        Column("name", "Method"), Column("detector", "Detector"),
        *(Column(name, short, "number", best=best[name]) for name, short in LISTED.items()),
        Column("seconds", "Seconds", "number", help="per stage and run"),
        Column("kept", "State, MiB", "number", help="after the last stage"),
    ]  # fmt: skip
    note = "Means over stages and runs; a run's seconds per stage, its state after the last one."
    frame = wide.reset_index().assign(head="", stream=lambda one: one["name"])
    return Table("novelty", "Novelty", tuple(columns), frame, note)


def _costs(digest: Digest) -> pd.DataFrame:
    """Seconds per stage and mebibytes of state by name and detector."""
    frame, found = digest.frame, []
    for detector in detectors_of(digest):
        for kind in ("seconds", "bytes"):
            own = frame[frame["metric"] == f"{detector}/{kind}"].astype({"name": str})
            if kind == "bytes":
                last = own.groupby("name")["stage"].transform("max")
                own = own[own["stage"] == last].assign(value=own["value"] / 2**20)
            mean = own.groupby("name")["value"].mean().rename("value").reset_index()
            label = "seconds" if kind == "seconds" else "kept"
            found.append(mean.assign(detector=detector, kind=label))
    whole = pd.concat(found)
    return whole.pivot_table(index=["name", "detector"], columns="kind", values="value").reindex(
        columns=["seconds", "kept"]
    )
