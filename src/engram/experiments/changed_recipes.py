"""Plans compared with the recipes of a run directory, and with each other: changed, or equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engram.errors import BadArgument, RecordError, bad
from engram.experiments.build_probes import plain_probe
from engram.experiments.experiment_id import ID_FORMAT, IDENTITY_PARTS
from engram.experiments.plan import Plan
from engram.records import RunDirectory

_KEEP_LEVELS = ("counts", "labels", "scores", "parameters")  # each includes those before it


class RecordedRecipes(Mapping[str, Mapping[str, Any]]):
    """The recipes of a directory by their ids, read on first use."""

    def __init__(self, folder: RunDirectory) -> None:
        self.folder = folder
        self.identities = folder.identities()

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self.identities:
            raise KeyError(name)
        return self.folder.recipe(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.identities)

    def __len__(self) -> int:
        return len(self.identities)


def read_recorded_recipes(folder: RunDirectory) -> RecordedRecipes:
    """Return the recipes of a directory by id; raises if it was written with other ids."""
    found = RecordedRecipes(folder)
    for identity in found.identities.values():
        if identity.get("form") != ID_FORMAT:
            raise RecordError(
                f"{folder.path}: was written by another version, which made ids in another way. "
                "It can be read (engram report, engram metrics), but nothing can be added to it: "
                "use another directory"
            )
    return found


def describe_changes(plans: Sequence[Plan], known: RecordedRecipes) -> list[str]:
    """Describe every experiment that was recorded under the same names but has changed.

    The numbers do not mix, since the changed experiment has its own id.
    """
    return [
        f"{plan.label}: {describe_difference(plan.content, known[old])} since the runs recorded "
        f"as {old}; they "
        f"stay as they are, and what is run now is recorded as {plan.recipe}"
        for plan, old in _pair_with_recorded(plans, known)
    ]


def refuse_changed(plans: Sequence[Plan], folder: RunDirectory) -> None:
    """Raise if a recorded experiment cannot be continued because it has changed."""
    known = read_recorded_recipes(folder)
    for plan, old in _pair_with_recorded(plans, known):
        raise RecordError(
            f"{folder.path}: {plan.label} cannot be continued, "
            f"{describe_difference(plan.content, known[old])} since; "
            "engram run (or engram.run) with the same directory runs the experiment of today "
            "beside the old one"
        )


def _pair_with_recorded(plans: Sequence[Plan], known: RecordedRecipes) -> list[tuple[Plan, str]]:
    """Pair plans that are not recorded with the last recorded experiment of the same names."""
    by_names = {identity["asked"]: old for old, identity in known.identities.items()}
    fresh = {plan.recipe: plan for plan in plans if plan.recipe not in known}
    matched = [(plan, by_names.get(plan.content["identity"]["asked"])) for plan in fresh.values()]
    return [(plan, old) for plan, old in matched if old is not None]


def describe_difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Describe what differs between two experiments of the same names.

    Examples
    --------
    >>> now = {"stream": {"data": "a.npz"}, "identity": {"data": "1", "model": "2"}}
    >>> describe_difference(now, {"identity": {"data": "0", "model": "2"}})
    "the data ('a.npz') has changed"
    """
    mine, other = now["identity"], before["identity"]
    parts = [name for name in IDENTITY_PARTS if mine.get(name) != other.get(name)]
    shown = [f"{IDENTITY_PARTS[name]}{_name(now, name)}" for name in parts]
    return f"{' and '.join(shown)} {'have' if len(shown) > 1 else 'has'} changed"


def _name(content: Mapping[str, Any], part: str) -> str:
    if part == "data":
        return f" ({content['stream']['data']!r})"
    section = content.get(part)
    name = section.get("name") if isinstance(section, Mapping) else section
    return f" ({name})" if name and part != "average" else ""


def merge_equal_plans(plans: Sequence[Plan]) -> list[Plan]:
    """Merge plans of the same run, joining probes and keeping the most that one of them keeps; it
    is trained as far as one of them asks.

    Raises for one experiment under two labels, because one label would be lost.
    """
    found: dict[tuple[str, int, str], Plan] = {}
    for plan in plans:
        first = found.setdefault(plan.key, plan)
        if first.label != plan.label:
            raise BadArgument(
                f"label: expected different experiments, {first.label!r} and {plan.label!r} are "
                "the same one (data, stream, model, method and training settings are equal)"
            )
        more = _KEEP_LEVELS.index(plan.keep) > _KEEP_LEVELS.index(first.keep)
        unseen = plan.run.unseen and not first.run.unseen
        if more or unseen or not set(plan.probes) <= set(first.probes):
            found[plan.key] = _merge_two_plans(first, plan)
        if found[plan.key].stages < plan.stages:
            found[plan.key] = replace(found[plan.key], until=plan.until)
    return list(found.values())


def _merge_two_plans(first: Plan, second: Plan) -> Plan:
    """Merge two plans of one run that differ in probes or in what is kept."""
    probes = {**first.probes, **second.probes}
    names = [probe.name for probe in probes.values()]
    if len(set(names)) < len(names):
        expected = f"probes of different names for the one run of {first.label!r}"
        raise bad("probes", expected, sorted(names))
    sets = [one.outside for one in (first, second) if one.outside is not None]
    if len({(one.data.fingerprint(), one.limit) for one in sets}) > 1:
        raise bad("outside", f"one outside set for the one run of {first.label!r}", "two")
    told = [one.content["outside"] for one in (first, second) if "outside" in one.content]
    keep = max(first.keep, second.keep, key=_KEEP_LEVELS.index)
    content = {**first.content, "keep": keep}
    if probes:
        content["probes"] = [plain_probe(one) for one in probes.values()]
    evaluate_unseen = first.evaluate_unseen or second.evaluate_unseen
    if evaluate_unseen:
        content["evaluate_unseen"] = True
    run = replace(
        first.run, features=first.run.features or second.run.features,
        unseen=first.run.unseen or second.run.unseen,
    )  # fmt: skip
    return replace(
        first, run=run, probes=probes, keep=keep, evaluate_unseen=evaluate_unseen,
        outside=sets[0] if sets else None,
        content={**content, **({"outside": told[0]} if told else {})},
    )  # fmt: skip
