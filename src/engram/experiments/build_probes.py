"""Build probes and novelty detectors from names, user code included, and the keys of their
results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

from engram.errors import bad, check_choice
from engram.experiments.build_methods import load_user_class
from engram.experiments.experiment_id import describe, short_hash
from engram.experiments.plain_values import code_name, from_plain, to_plain
from engram.probes import Probe
from engram.probes.ood_data import OODData
from engram.probes.probe import check_probe


def build_probes(specs: Any) -> tuple[Probe, ...]:
    """Build probes from probes, names ``module:Class``, or mappings with such a name."""
    if isinstance(specs, (str, Mapping, Probe)):
        specs = [specs]
    if not isinstance(specs, Iterable):
        raise bad("probes", "a list of probes", specs)
    found = tuple(check_probe(_build_probe(one)) for one in specs)
    names = [probe.name for probe in found]
    for name in names:
        if names.count(name) > 1:
            raise bad("probes", "probes with different names (see Probe.name)", names)
    return found


def _build_probe(spec: Any) -> Any:
    if isinstance(spec, str):
        spec = {"name": spec}
    if isinstance(spec, type) and issubclass(spec, Probe):
        return from_plain(spec, {}, path=f"probes.{spec.__name__}")
    if not isinstance(spec, Mapping):
        return spec
    name = spec.get("name")
    if not isinstance(name, str) or ":" not in name:
        raise bad("probes", "a name such as module:Class, or a mapping with one", name or spec)
    return _from_values(load_user_class(name, Probe, what="probes"), spec, "probes")


def _from_values(cls: type[Any], spec: Mapping[str, Any], path: str) -> Any:
    """Build a probe from its options, in which a detector may be a name or a mapping."""
    values = {k: v for k, v in spec.items() if k != "name"}
    if isinstance(values.get("detector"), (str, Mapping)) and _holds_detector(cls):
        (values["detector"],) = build_detectors({"detectors": [values["detector"]]})
    return from_plain(cls, values, path=f"{path}.{cls.__name__}")


def _holds_detector(cls: type[Any]) -> bool:
    from engram.novelty import Detector

    return get_type_hints(cls).get("detector") is Detector


def build_detectors(content: Mapping[str, Any]) -> tuple[Probe, ...]:
    """Build the novelty detectors of a recipe from names, mappings or detectors."""
    from engram.novelty import Detector, detectors

    specs = content.get("detectors") or ()
    if isinstance(specs, (str, Mapping, Detector)):
        specs = [specs]
    if not isinstance(specs, Iterable):
        raise bad("detectors", "a list of detectors", specs)
    known, found = detectors(), []
    for spec in specs:
        named = {"name": spec} if isinstance(spec, str) else spec
        if isinstance(named, Mapping) and ":" not in str(named.get("name")):
            cls = known[check_choice("detectors", str(named.get("name")), known)]
            found.append(_from_values(cls, named, "detectors"))
        else:
            found.append(_build_probe(named))
        if not isinstance(found[-1], Detector):
            raise bad("detectors", "a Detector, its class, or the name of one", spec)
    return build_probes(found)


def plain_probe(probe: Probe) -> dict[str, Any]:
    """Convert a probe to a mapping, the inverse of `build_probes`."""
    values = to_plain(probe)
    for name in values:
        inner = getattr(probe, name)
        if isinstance(inner, Probe):
            values[name] = plain_probe(inner)
    return {"name": code_name(type(probe)), **values}


def key_probes(probes: Iterable[Probe], outside: OODData | None = None) -> dict[str, Probe]:
    """Key probes by name and hash of their source, so that a changed probe measures again.

    For a probe that reads the outside set, the set is part of the hash.
    """
    found = {}
    for probe in probes:
        about = describe(probe, "probes")
        if probe.outside and outside is not None:
            about = {"probe": about, "outside": outside.data.fingerprint()}
        found[f"{probe.name}@{short_hash(about)}"] = probe
    return found
