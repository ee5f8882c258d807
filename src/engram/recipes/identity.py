"""The id of an experiment: equal ids mean the same data, code, weights and options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engram.engine.evaluation.judging import FIGURES
from engram.engine.run import automatic
from engram.engine.training import Training
from engram.methods.base import Method
from engram.models.build import model_defaults
from engram.models.own import is_own_name, own_maker
from engram.models.timm_net import is_timm
from engram.models.weights import check_sum
from engram.recipes.describe import describe
from engram.recipes.names import plain_method
from engram.recipes.plain import code_name, to_plain
from engram.streams.core import INFORMATION, Stream
from engram.streams.orders import ORDER_OPTIONS, order_text

FORM = 2  # of ids; those of form 1 said nothing about data and source
PARTS = {  # of an experiment, in the words of a message
    "data": "the data",
    "stream": "the stream",
    "model": "the structure, source or starting weights of the model",
    "method": "the source or an option of the method",
    "training": "the training settings",
    "average": "the average",
}


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What an experiment is.

    Parameters
    ----------
    id
        The name under which its numbers are kept.
    content
        The experiment as a recipe, in plain values; under ``identity`` the hashes of its parts.
    """

    id: str
    content: Mapping[str, Any]


def identify(
    stream: Stream,
    *,
    method: Method,
    model: Any,
    training: Training,
    average: str,
    counted_from: str = "",
) -> Identity:
    """Who an experiment is, whichever way it was put: a recipe or a call with objects.

    Seeds, order, label and what is kept stay outside. `counted_from` is the order from which the
    orders of a study count.

    Examples
    --------
    >>> from engram import class_incremental, load
    >>> from engram.methods import ER
    >>> rest = {"method": ER(), "training": Training(), "average": "micro"}
    >>> first = identify(class_incremental(load("blobs")), model="mlp", **rest)
    >>> spelt = class_incremental(load("blobs"), classes_per_task=2, valid=0)
    >>> identify(spelt, model={"name": "mlp", "hidden": [256, 256]}, **rest).id == first.id
    True
    >>> other = class_incremental(load("blobs", seed=1))
    >>> identify(other, model="mlp", **rest).id == first.id
    False
    """
    section = stream_section(stream)
    values = {
        "data": stream.data.fingerprint(),
        "stream": {**_made(stream), "counted from": counted_from},
        "model": _model(model),
        "method": describe(method, "method"),
        "training": _training(training, stream),
        "average": average,
    }
    parts = {name: short(value) for name, value in values.items()}
    content = {
        "stream": {**section, "head": stream.head}, "model": shown_model(model),
        "method": plain_method(method), "training": to_plain(training), "average": average,
    }  # fmt: skip
    facts: dict[str, Any] = {"form": FORM, "asked": options_hash(content), **parts}
    source = stream.origin.source if stream.origin else None
    if source is None:
        facts["data_in_memory"] = True
    elif source.root is not None:
        facts["data_root"] = source.root
    return Identity(id=short(parts), content={**content, "identity": facts})


def _training(training: Training, stream: Stream) -> Any:
    """What the settings say, however they are spelt: equal ones are the same experiment."""
    spelt = [name for name, meant in automatic(stream).items() if getattr(training, name) == meant]
    changes: dict[str, Any] = dict.fromkeys(spelt, "auto")
    if training.plateau_watch == "score":
        changes["plateau_watch"] = FIGURES[stream.labels]
    found = describe(replace(training, **changes), "training")
    if not training.min_lr:  # a setting that came later, and does nothing
        del found["fields"]["min_lr"]
    return found


def short(value: Any) -> str:
    """12 hexadecimal digits over plain values.

    Examples
    --------
    >>> short({"a": 1, "b": 2}) == short({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def options_hash(content: Mapping[str, Any]) -> str:
    """Hash of what a recipe says, names as they stand, without seeds, order, label and keep."""
    said = {k: content[k] for k in ("method", "training", "average")}
    said["model"] = _model(content["model"], resolve=False)
    outside = (*ORDER_OPTIONS, "head")
    stream = {k: v for k, v in content["stream"].items() if k not in outside}
    return short(describe({**said, "stream": stream}, "recipe"))


def stream_section(stream: Stream) -> dict[str, Any]:
    """The stream as a recipe names it; one made by hand as it describes itself."""
    made = stream.origin
    if made is None:
        return {**to_plain(stream.describe()), "data": stream.data.name}
    named: dict[str, Any] = {"kind": made.kind, "data": made.data}
    if made.source is not None:
        named["data"] = made.source.name
        if made.source.options:
            named["data_options"] = to_plain(made.source.options)
    options = {k: v for k, v in made.options.items() if not (k == "order" and v is None)}
    return {**named, **to_plain(options)}


def _made(stream: Stream) -> dict[str, Any]:
    """What a stream is besides its data and the order of its classes."""
    made = stream.origin
    if made is None:
        view = None if stream.view is None else describe(stream.view, "stream.view")
        return {"tasks": stream.fingerprint(), "view": view}
    options = {k: v for k, v in made.options.items() if k not in ORDER_OPTIONS}
    if options.get("information") == INFORMATION[0]:  # an option that came later, and does nothing
        del options["information"]
    return {"kind": made.kind, **describe(options, "stream")}


def order_of(stream: Stream) -> str:
    """An explicit order, or the number of a published one, as text; classes by their ids.

    Domains are ordered by the values of their attribute.
    """
    options = {} if stream.origin is None else dict(stream.origin.options)
    if (order := options.get("order")) is not None:
        by = options.get("by")
        names = stream.data.classes if by is None else stream.data.attribute_names.get(by, ())
        ids = [names.index(one) if isinstance(one, str) else int(one) for one in order]
        options["order"] = ids
    return order_text(options)


def _model(model: Any, *, resolve: bool = True) -> Any:
    """A model of the library with its defaults; an own one by what it does and weighs.

    Without `resolve`, an own one that is given by its name stays a name.
    """
    if isinstance(model, str):
        model = {"name": model}
    if isinstance(model, Mapping) and is_timm(model.get("name")):
        if model.get("weights"):
            model = {**model, "sha256": model.get("sha256") or check_sum(str(model["weights"]))}
            model.update(weights=True, sha256=str(model["sha256"]).lower())
    elif isinstance(model, Mapping) and isinstance(model.get("name"), str) \
            and not is_own_name(model["name"]):  # fmt: skip
        model = {**model_defaults(str(model.get("name"))), **model}
        if model.get("sha256"):  # which weights a model begins with, not where their file lies
            model.update(weights=True, sha256=str(model["sha256"]).lower())
    elif isinstance(model, Mapping) and resolve:
        model = {**model, "name": own_maker(model["name"])}
        model = model if len(model) > 1 else model["name"]
    return describe(model, "model")


def shown_model(model: Any) -> Any:
    """The model as a recipe names it; an own one by its class."""
    return to_plain(model) if isinstance(model, (str, Mapping)) else code_name(model)
