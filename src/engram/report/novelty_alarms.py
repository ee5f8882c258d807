"""False alarms of detectors: does a threshold keep what it promised?"""

from __future__ import annotations

from engram.report.digest import Digest
from engram.report.inputs import ALARM_RATE
from engram.report.novelty import MOST_DETECTORS, detectors_of, left_out, over_stages
from engram.report.section import DrawnMethods, Panel, Section

KINDS = {"frozen": "threshold of the task's own stage", "renewed": "threshold of the newest stage"}
TEXT = (
    f"How often a detector flags inside items of earlier tasks as novel, with a threshold set for "
    f"{ALARM_RATE:.0%} false alarms (dotted) on validation rows: those of the task's own stage or "
    "those of the newest task. A line that departs from the dotted one means that scores have "
    "drifted, which AUC cannot show. Mean over earlier tasks and runs."
)


def alarms_section(digest: Digest, cast: DrawnMethods) -> Section | None:
    """Lines over stages; None without calibrated thresholds."""
    if not len(digest.alarms):
        return None
    table = digest.by_name(digest.alarms)
    table = table[table["name"].isin(cast.names) & (table["task"] < table["stage"])]
    detectors = detectors_of(digest)
    last = int(digest.alarms["stage"].max()) + 1
    panels = []
    for place, detector in enumerate(detectors[:MOST_DETECTORS]):
        own = table[table["detector"] == detector]
        means = own.groupby(["name", "head", "stage"], sort=False)[list(KINDS)].mean()
        for kind, words in KINDS.items():
            rows = means[kind].rename("value").dropna().reset_index()
            if not len(rows):
                continue
            figure = over_stages(rows.assign(x=rows["stage"] + 1), cast, "false alarms", last)
            rule = {"width": 1, "dash": "dot", "color": "#8A8A8A"}
            figure.add_hline(y=ALARM_RATE, line=rule)
            panels.append(Panel(f"alarms-{place + 1}-{kind}", f"{detector}: {words}", figure))
    if not panels:
        return None
    text = TEXT + left_out("detectors", len(detectors), MOST_DETECTORS)
    return Section("novelty-alarms", "Novelty: thresholds", text, tuple(panels))
