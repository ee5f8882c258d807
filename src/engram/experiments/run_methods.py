"""`engram.run`: train one or more methods on a stream."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from engram.data import Data
from engram.engine.training import Training
from engram.errors import BadArgument, bad, check_int, suggest_name, unknown
from engram.experiments.build_methods import build_method
from engram.experiments.callbacks import Callback, StageHook, find_log_tools, open_callback
from engram.experiments.plan import Planner
from engram.experiments.recipe import Experiment
from engram.experiments.recipe_sections import stream_options
from engram.experiments.run_plans import execute
from engram.methods.method import Method
from engram.models.build import model_options
from engram.records import Result
from engram.renamed import accept_old_arguments
from engram.streams.incremental_streams import class_incremental
from engram.streams.stream import Stream
from engram.streams.stream_warnings import describe_repeats, describe_scales


@accept_old_arguments(again="rerun")
def run(
    stream: Stream | Data,
    *,
    method: Method | type[Method] | str | Mapping[str, Any] | Sequence[Any] = "Finetune",
    model: Any = "mlp",
    seeds: int | Sequence[int] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    together: bool | None = None,
    compile: bool = False,
    deterministic: bool = False,
    exact: bool = False,
    checkpoint_every: float | str = "5m",
    keep: str = "scores",
    evaluate_unseen: bool = False,
    average: str = "micro",
    label: str = "",
    callback: Callback | StageHook | str | None = None,
    rerun: bool = False,
    probes: Sequence[Any] = (),
    detectors: Sequence[Any] = (),
    outside: Any = None,
    log: str | Sequence[str] = (),
    limit: int | None = None,
    **training: Any,
) -> Result:
    """Train one or more methods on a stream and return the results.

    Parameters
    ----------
    stream
        A stream, or data (then class-incremental with two classes per task).
    method
        A method, its name or class, or a list of them to compare.
    model
        A name, a mapping with a name and options, a backbone module or a factory.
    seeds, seed
        A number of seeds (1) or the seeds themselves; every seed is one run. ``seed=3`` is one.
    out
        Run directory; finished stages found there are not run again.
    together
        Train runs of the same shape in lockstep: always, never, or (None) where that is faster.
    compile
        Fuse the operations of a training step with ``torch.compile``: seconds to a minute of
        compilation for every kind of step, then steps up to three times as fast. Needs a C++
        compiler on the CPU and Triton on CUDA, where LeNet uses custom kernels instead, built
        within seconds.
    deterministic
        Bit-identical results on CUDA too, at some cost in speed, also for a run that was
        interrupted. An operation for which torch has no deterministic algorithm is an error. On
        the CPU results are always bit-identical.
    exact
        The same bits in every pool and beside any other runs: every run trains by itself, on one
        thread of the CPU, deterministically on CUDA. Without it, lockstep and the number of threads
        change last bits, which float32 training can amplify to visible differences.
    checkpoint_every
        With `out`: interval of checkpoints within a task, as ``"90s"``, ``"5m"``, or in seconds.
        If a process dies, what it did since its last checkpoint is repeated.
    evaluate_unseen
        Also score the tasks to come after every stage, which forward transfer needs. By default
        only those learnt so far are scored, half the work; a run with `detectors` scores all, since
        what is to come is novel. Not part of the experiment: it changes no other number.
    rerun
        Rerun what is finished in `out`. The previous records of these runs stay there, but no
        longer count.
    probes
        Your own measurements after every stage (`engram.Probe`), their names ``module:Class``, or
        mappings with a name and options. They are not part of the experiment: finished runs in
        `out` are measured from what was kept of them, without training.
    detectors
        Novelty detectors (`engram.novelty`, by name, or your own): fitted and evaluated after every
        stage, read with `Result.novelty`. Like probes, not part of the experiment.
    outside
        Outside set for tuning detectors, never trained on: data with the stream's input shape, a
        name, a path or a mapping ``{"data": ..., "data_options": {...}}``.
    log
        ``tensorboard``, ``wandb`` or ``mlflow``, or several: receive the results of every finished
        stage. Their files are written to `out`, or to the working directory.
    limit
        For quick trials: of data, at most so many rows of each part, see `Data.limit`.
    training
        Fields of `Training`: epochs, batch_size, lr, optimizer, ...

    Examples
    --------
    >>> import engram
    >>> stream = engram.class_incremental(engram.load("blobs"), classes_per_task=2)
    >>> result = engram.run(stream, method="ER", epochs=3, seeds=2)
    >>> result.matrix.shape == (2, len(stream), len(stream))
    True
    """
    find_log_tools(log)
    _check_names(training, method, model)
    if limit is not None and isinstance(stream, Stream):
        raise bad("limit", "None for a stream (engram.load(..., limit=...) limits its data)", limit)
    if isinstance(stream, Data):
        stream = stream if limit is None else stream.limit(limit)
        stream = class_incremental(stream)
    if not isinstance(stream, Stream):
        raise bad(
            "stream", f"a stream or data, such as {_suggest_data(stream)}", _name_or_type(stream)
        )
    for words in (describe_repeats(stream), describe_scales(stream)):
        if words:  # a warning, not an error: a benchmark may intend this
            warnings.warn(words, stacklevel=3)
    rest = {
        "model": model, "training": training, "seeds": _choose_seeds(seeds, seed),
        "keep": keep, "average": average, "evaluate_unseen": evaluate_unseen, "label": label,
        "probes": probes, "detectors": detectors, "outside": outside,
    }  # fmt: skip
    experiments = [Experiment.of({"method": one, **rest}) for one in _list_methods(method)]
    planner = Planner()
    plans = [plan for one in experiments for plan in planner.plans(one, stream)]
    with open_callback(callback, log=log, out=out) as follow:
        return execute(
            plans, out=out, device=device, together=together, compile=compile, callback=follow,
            rerun=rerun, deterministic=deterministic, exact=exact,
            checkpoint_every=checkpoint_every,
        ).result()  # fmt: skip


def _choose_seeds(seeds: Any, seed: Any) -> Any:
    """Return the seeds, of which `seed` names one."""
    if seed is None:
        return 1 if seeds is None else seeds
    if seeds is not None:
        raise bad("seed", "either seed or seeds", seed)
    return [check_int("seed", seed)]


def _suggest_data(what: Any) -> str:
    """Suggest how to make `Data` of an object."""
    if isinstance(what, str):
        return f"engram.load({what!r})"
    if hasattr(what, "columns"):  # a table
        return "engram.Data.from_frame(frame, label=COLUMN)"
    if hasattr(what, "__getitem__") and hasattr(what, "__len__"):
        arrays = isinstance(what, (tuple, list, Mapping)) or hasattr(what, "shape")
        return f"engram.Data.from_{'arrays(x, y)' if arrays else 'torch(train, test)'}"
    return "engram.load('digits')"


def _name_or_type(what: Any) -> Any:
    """Return a string as it is, and the type of anything else, for a short message."""
    return what if what is None or isinstance(what, (str, int)) else type(what).__name__


def _list_methods(method: Any) -> list[Any]:
    """Return one method or a list of methods as a list."""
    one = isinstance(method, (Method, str, Mapping, type)) or not isinstance(method, Iterable)
    found = [method] if one else list(method)
    if not found:
        raise bad("method", "a method, or a list of methods", method)
    return found


def _check_names(training: Mapping[str, Any], method: Any, model: Any) -> None:
    """Raise for a name far from all fields of `Training`, with a hint at other arguments."""
    known = [field.name for field in fields(Training)]
    for name in training:
        if name not in known and suggest_name(name, known) is None:
            own = list(inspect.signature(run).parameters)[:-1]
            error = unknown("run", name, [*own, *known])
            raise error if error.near else _misplaced_option_error(name, method, model) or error


def _misplaced_option_error(name: str, method: Any, model: Any) -> BadArgument | None:
    """Make the error for an option of a method, model or stream given as an argument of `run`."""
    kind = class_incremental.__name__
    places = {f"engram.{kind}(data, {name}=...)": tuple(stream_options(kind))}
    if isinstance(model, str):
        places[f"model={{'name': {model!r}, {name!r}: ...}}"] = model_options(model)
    for one in _list_methods(method):
        if isinstance(one, str):
            names = tuple(field.name for field in fields(build_method(one)))
            places[f"method={{'name': {one!r}, {name!r}: ...}}"] = names
    for place, names in places.items():
        if name in names:
            return BadArgument(f"run: {name} is given as {place}")
    return None
