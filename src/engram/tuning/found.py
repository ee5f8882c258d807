"""What a search has found, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.errors import EngramError
from engram.recipes import Recipe, execute
from engram.recipes.plan import Planner, RecipePlanner
from engram.records import Result
from engram.spelling import plural
from engram.tuning.ranges import Range
from engram.tuning.subject import Subject, shown
from engram.tuning.trials import Trial

if TYPE_CHECKING:
    import pandas as pd

ON_TEST = "chosen on test rows"  # what labels say where it is so
MINIMISED = ("forgetting", "intransigence", "forgetting_bound")


@dataclass(frozen=True, eq=False, kw_only=True)
class Search:
    """Trials, the best of them, what they cost, and the setting to go on with.

    Parameters
    ----------
    trials
        All trials in the order in which they were asked for.
    metric
        What they are compared by, after the last of the first `tasks`.
    on
        The rows that decided: ``valid`` or ``test``.
    result
        The runs of all trials. They are judged on validation rows: its accuracies are no test
        accuracies, unless `on` is ``test``.
    seconds
        What the search took on the clock, all calls together.
    """

    ranges: tuple[Range, ...]
    trials: tuple[Trial, ...]
    metric: str
    tasks: int
    on: str
    result: Result
    seconds: float
    subject: Subject = field(repr=False)
    wanted: int = 0
    out: Path | None = None

    @property
    def maximize(self) -> bool:
        """Whether more of the metric is better."""
        return self.metric not in MINIMISED

    @property
    def complete(self) -> bool:
        """Whether every trial has come to its end."""
        return all(one.ended for one in self.trials)

    @property
    def best(self) -> Trial:
        """The trial with the best value; of equal ones the first."""
        known = [one for one in self.trials if one.value is not None]
        if not known:
            raise EngramError("no trial of the search succeeded, so none can be chosen")
        sign = 1 if self.maximize else -1
        return max(known, key=lambda one: (sign * (one.value or 0.0), -one.number))

    @property
    def chosen(self) -> dict[str, Any]:
        """The values of the best trial."""
        return dict(self.best.values)

    @property
    def recipe(self) -> Recipe | None:
        """The recipe with the chosen values, over the whole stream; None for a stream in memory."""
        made = self.subject.experiment(self.chosen, self._label())
        return made if isinstance(made, Recipe) else None

    def _label(self) -> str:
        if self.on != "test":
            return ""
        return f"{self.best.label}, {ON_TEST}"  # whoever sees its numbers must know

    def run(self, *, out: str | Path | None = None, **how: Any) -> Result:
        """Run the chosen setting on the whole stream, judged on its test rows.

        `how` as in `engram.run`: device, together, compile, deterministic, checkpoint_every,
        callback, again.
        """
        made = self.subject.experiment(self.chosen, self._label())
        if isinstance(made, Recipe):
            plans = RecipePlanner(self.subject.root).of(made)
        else:
            assert self.subject.stream is not None
            plans = Planner(self.subject.root).plans(made, self.subject.stream)
        return execute(plans, out=out, **how).result()

    def table(self) -> pd.DataFrame:
        """One line per trial: its values, the metric, and what it cost."""
        import pandas as pd

        rows = [
            {
                "trial": one.number, **one.values, self.metric: one.value, "std": one.std,
                "diverged": one.diverged, "seconds": one.seconds, "steps": one.steps,
            }
            for one in self.trials
        ]  # fmt: skip
        return pd.DataFrame(rows).set_index("trial")

    def curve(self, key: str) -> pd.DataFrame:
        """How the metric responds to one of the values, along it."""
        found: pd.DataFrame = self.table()[[key, self.metric, "std"]].sort_values(key)
        return found

    @property
    def cost(self) -> Mapping[str, float]:
        """Trials, runs, steps, their seconds of training, and seconds on the clock."""
        return {
            "trials": len(self.trials), "runs": sum(one.runs for one in self.trials),
            "steps": sum(one.steps for one in self.trials),
            "run_seconds": sum(one.seconds for one in self.trials), "seconds": self.seconds,
        }  # fmt: skip

    def _equals(self) -> list[str]:
        """A line on trials that are exactly as good as the best: the first of them was taken."""
        ended = sum(one.value is not None for one in self.trials)
        equal = sum(one.value == self.best.value for one in self.trials)
        if equal == ended > 1:
            return [f"  all {ended} trials are equally good: what was varied makes no difference"]
        return [f"  {equal} of {ended} trials are equally good; the first one is chosen"] * (
            equal > 1
        )

    def __str__(self) -> str:
        rows = "TEST ROWS" if self.on == "test" else "validation rows"
        lines = [
            f"Search: {plural(len(self.trials), 'trial')} of {', '.join(map(str, self.ranges))}",
            f"  judged by {self.metric} on {rows} of the first {self.tasks} tasks",
        ]
        lost = sum(one.diverged > 0 for one in self.trials)
        open_ = sum(not one.ended for one in self.trials)
        lines += [f"  {lost} trials diverged"] * bool(lost)
        lines += [f"  {open_} trials are not finished"] * bool(open_)
        if any(one.value is not None for one in self.trials):
            best = self.best
            values = ", ".join(f"{key}={shown(value)}" for key, value in best.values.items())
            spread = "" if best.std is None else f" ± {best.std:.3f}"
            lines.append(f"  chosen: {values} ({best.value:.3f}{spread})")
            lines += self._equals()
        cost = self.cost
        lines.append(
            f"  cost: {cost['runs']} runs, {cost['steps']:,} steps, {cost['run_seconds']:.1f} "
            f"seconds of training, {cost['seconds']:.1f} on the clock"
        )
        return "\n".join(lines)

    __repr__ = __str__
