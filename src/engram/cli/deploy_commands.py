"""Commands that use trained models: predict, serve, open-world."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.console import emit
from engram.cli.options import Assignments, Device, Label, Root, Seeds, Trust
from engram.errors import plural

if TYPE_CHECKING:
    from engram.deploy import Learner
    from engram.deploy.unlabelled_inputs import UnlabelledInputs


def predict(
    source: Annotated[
        Path,
        typer.Argument(metavar="DIR|MODEL", help="A run directory, a model.engram, or a store."),
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", metavar="PATH|NAME",
            help="A folder of images, an image, .npy, .npz, .csv or .parquet file, or a data "
            "set (its test rows).",
        ),
    ],
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method, if there are several.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed (default: the first).")] = None,
    order: Annotated[str | None, typer.Option(help="Order, in a study of orders.")] = None,
    task: Annotated[
        int | None, typer.Option(help="Task of the inputs, from 1, if tasks have separate heads.")
    ] = None,
    novelty: Annotated[
        bool, typer.Option("--novelty", help="Add a novelty score for each input, and an alarm.")
    ] = False,
    detector: Annotated[
        str | None, typer.Option(metavar="NAME", help="Novelty detector (default: the first).")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Rate of false novelty alarms (default: 0.05, with calibration rows)."),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--proba", help="Add the probability of every class.")
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column to leave out. Repeatable."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Record the predictions for `engram monitor`.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE",
            help="CSV file to write (default: print).",
        ),
    ] = None,
    root: Root = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:  # fmt: skip
    """Predict labels of new inputs with the model of a run or a model file.

    Prints CSV: one line per input with its name, the predicted label and its probability.
    Unreadable images are reported and left out; the exit code is then 1.
    """
    from engram.cli.console import FAILED, emit, say
    from engram.deploy.calibration import DEFAULT_RATE
    from engram.deploy.unlabelled_inputs import read_inputs
    from engram.errors import bad
    from engram.io import atomic_write, make_folders
    from engram.report.table import frame_to_csv

    learner = open_model(source, label, seed, order, device, trust)
    about = learner.snapshot.facts["inputs"]
    asked = read_inputs(data, about, drop=drop or (), root=str(root) if root else None)
    for line in () if asked.report is None else asked.report.warnings:
        say(f"warning: {line}", style="yellow")
    where = _task_index(learner, task)
    table = _prediction_table(learner, asked, where, probabilities)
    if novelty or detector is not None or rate is not None:
        if rate is None and (where is not None or learner.snapshot.explain_no_alarm()):
            table["novelty"] = learner.novelty(asked.x, detector=detector, task=where)
        elif where is not None:
            raise bad("--task", "none for alarms, which are about all classes", task)
        else:
            wanted = DEFAULT_RATE if rate is None else rate
            found = learner.alarm(asked.x, wanted, detector=detector)
            for name in ("novelty", "p_value", "alarm"):
                table[name] = getattr(found, name)
    if record:
        table.insert(0, "id", _record(source, learner, asked, rate))
    text = frame_to_csv(table)
    if out is None:
        emit(text)
    else:
        make_folders(out.parent)
        with atomic_write(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
        say(f"{plural(len(table), 'prediction')} in {out}")
    if asked.truth is not None and learner.snapshot.facts["labels"] == "single":
        _say_accuracy(learner, table, where)
    for problem in asked.unreadable:
        say(f"could not read: {problem}", style="yellow")
    if asked.unreadable:
        some = (
            "1 image has"
            if len(asked.unreadable) == 1
            else f"{len(asked.unreadable):,} images have"
        )
        say(f"{some} no prediction, {len(table):,} do")
        raise typer.Exit(FAILED)


def _task_index(learner: Learner, task: int | None) -> int | None:
    """Convert a task number from 1, as shown to users, to one from 0."""
    from engram.errors import bad, check_int

    last = learner.tasks
    if task is None:
        if learner.snapshot.facts["head"] == "multi":
            expected = f"the task of the inputs, 1 to {last}: each task has its own head"
            raise bad("--task", expected, None)
        return None
    if check_int("--task", task, 1) > last:
        raise bad("--task", f"a task from 1 to {last}", task)
    return task - 1


def _say_accuracy(learner: Learner, table: Any, task: int | None) -> None:
    """Print the accuracy, with a head per task over rows of its classes."""
    from engram.cli.console import say

    known, facts = table, learner.snapshot.facts
    if task is not None:
        own = [facts["classes"][column] for column in facts["tasks"][task]["visible"]]
        known = table[table["truth"].isin(own)]
    if len(known):
        right = (known["label"].astype(str) == known["truth"]).mean()
        of = "" if task is None else f" of the classes of task {task + 1}"
        rows = plural(len(known), "labelled row")
        say(f"accuracy {right:.4f} on {rows}{of}")


def _record(
    source: Path, learner: Learner, asked: UnlabelledInputs, rate: float | None
) -> list[str]:
    """Record predictions beside a model; returns their ids."""
    from engram.deploy import ModelStore
    from engram.deploy.calibration import DEFAULT_RATE
    from engram.deploy.model_store import is_store
    from engram.deploy.monitor import Monitor

    model = ModelStore(source) if is_store(source) else learner
    wanted = DEFAULT_RATE if rate is None else rate
    found: list[str] = Monitor.of(source).predict(model, asked.x, rate=wanted)["id"].tolist()
    return found


def open_model(
    source: Path, label: str | None, seed: int | None, order: str | None, device: str, trust: bool
) -> Learner:
    """Load the learner of a model file, a store, or one run of a directory."""
    from engram.deploy import Learner, ModelStore
    from engram.deploy.model_store import is_store
    from engram.errors import bad
    from engram.records import read

    if is_store(source):
        return ModelStore(source, device=device, trust=trust).learner
    if source.is_dir():
        return read(source).model(label, seed, order=order, device=device, trust=trust)
    if not source.exists():
        raise bad("DIR|MODEL", "a run directory or a model file", str(source))
    return Learner.load(source, device=device, trust=trust)


def _prediction_table(
    learner: Learner, asked: UnlabelledInputs, task: int | None, every: bool
) -> Any:
    import pandas as pd

    found, share = learner.predict(asked.x, task=task), learner.predict_proba(asked.x, task=task)
    if learner.snapshot.facts["labels"] == "set":
        found = ["|".join(map(str, one)) for one in found]
    table = pd.DataFrame({"input": asked.names, "label": found, "probability": share.max(1)})
    if asked.truth is not None:
        table.insert(2, "truth", asked.truth)
    if every:
        for place, name in enumerate(learner.classes_.tolist()):
            table[f"p({name})"] = share[:, place]
    return table


# ``engram serve``.


LAST_PORT = 65_535
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="A model.engram or a folder of versions (engram.ModelStore), or several, each as "
            "PATH or NAME=PATH; or a run directory, with --to FILE.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Access token (default: $ENGRAM_TOKEN)."),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with a role (predict, learn or admin) and a token in each line.",
        ),
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Require no token, even if other machines can reach it.")
    ] = False,
    max_request_bytes: Annotated[int, typer.Option(help="Largest request, in bytes.")] = 16 << 20,
    max_pending: Annotated[
        int, typer.Option(help="Requests in hand at once; more are asked to try again.")
    ] = 128,
    read_seconds: Annotated[
        float, typer.Option(help="Seconds within which a request must arrive.")
    ] = 10.0,
    queue: Annotated[
        int, typer.Option(help="Number of tasks of each model that may wait for training.")
    ] = 100,
    training_processes: Annotated[
        int, typer.Option(help="Processes that learn, which several models share.")
    ] = 1,
    threads: Annotated[int, typer.Option(help="Threads per prediction.")] = 1,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="Record predictions and labels that come later, for engram monitor."
        ),
    ] = False,
    log_format: Annotated[
        str, typer.Option(metavar="text|json", help="Form of the lines on standard error.")
    ] = "text",
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method of a run directory.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a run directory.")] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to save the model of a run directory to, first."),
    ] = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:  # fmt: skip
    """Serve models over HTTP: predict, novelty, learn, metrics, health, and a page to try them.

    Tasks sent to it are trained in a separate process, one after another; a model's file always
    holds the model after its last finished task. With several models, /models/NAME/predict and the
    like name one; /predict is the first.
    """
    from engram.cli.console import say
    from engram.errors import bad, check_choice, check_int

    _need_extra()
    token = token if token is not None else os.environ.get("ENGRAM_TOKEN", "")
    if host not in LOCAL_HOSTS and not token and tokens is None and not open_to_all:
        expected = f"a token, because other machines can reach {host} (or --tokens, --open)"
        raise bad("--token", expected, "none")
    check_int("--threads", threads, 1)
    check_int("--training-processes", training_processes, 1)
    if check_int("--port", port) > LAST_PORT:
        raise bad("--port", f"a port from 0 to {LAST_PORT}", port)
    given = {"--to": to, "--label": label, "--seed": seed}
    model = Path(models[0])
    single = len(models) == 1 and not model.is_file()
    if not single and (first := next((k for k, v in given.items() if v is not None), "")):
        raise bad(first, "no value with a model file: it is for run directories", given[first])

    import torch

    from engram.serve.access_tokens import AccessTokens, read_tokens
    from engram.serve.app import create_app
    from engram.serve.log_lines import LOG_FORMATS, configure_logging
    from engram.serve.request_limits import LOOPBACK, RequestLimits, make_server, open_socket
    from engram.serve.service import Service, name_models, require_model

    check_choice("--log-format", log_format, LOG_FORMATS)
    roles = [] if tokens is None else read_tokens(tokens)
    access = AccessTokens([*roles, ("admin", token)] if token else roles)
    limits = RequestLimits(
        max_request_bytes=max_request_bytes, max_pending=max_pending, read_seconds=read_seconds
    )
    torch.set_num_threads(threads)
    with open_socket(host, port) as at:
        if to is not None and model.is_dir():
            if to.exists():
                raise bad("--to", "a file that does not exist yet", str(to))
            models = [str(open_model(model, label, seed, None, device, trust).save(to))]
        named = name_models(models)
        service = Service(
            {name: require_model(path) for name, path in named.items()},
            device=device,
            trust=trust,
            queue=check_int("--queue", queue, 1),
            processes=training_processes,
            record=record,
        )
        hosts = LOOPBACK if host in LOCAL_HOSTS else ()
        app = create_app(service, limits=limits, tokens=access, hosts=hosts)
        port = at.getsockname()[1]  # for port 0, the free one chosen
        what = ", ".join(str(path) for path in named.values())
        say(f"{what} on http://{host}:{port} (API: /docs); press Ctrl-C to stop")
        configure_logging(log_format)
        make_server(app, host=host, port=port, limits=limits).run(sockets=[at])


def _need_extra() -> None:
    from engram.errors import EngramError

    wanted = ("fastapi", "uvicorn", "prometheus_client")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise EngramError(
            f"engram serve needs {' and '.join(missing)}: pip install 'engram-cl[serve]'"
        )


# ``engram open-world``.


def open_world(
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="NAME|PATH", help="Data set.")
    ],
    label: Label = None,
    detector: Annotated[
        str, typer.Option(metavar="NAME", help="Novelty detector (engram list detectors).")
    ] = "Softmax",
    method: Annotated[
        str, typer.Option("--method", "-m", metavar="NAME", help="Method.")
    ] = "ER",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Network.")] = None,
    known: Annotated[int, typer.Option(help="Number of classes known at the start.")] = 4,
    classes_per_round: Annotated[int, typer.Option(help="New classes in each round.")] = 2,
    novel_share: Annotated[
        float, typer.Option(help="Share of the new classes' rows that arrive.")
    ] = 1.0,
    labels: Annotated[int, typer.Option(help="Labels per round.")] = 40,
    rate: Annotated[float, typer.Option(help="False-alarm rate that sets the threshold.")] = 0.1,
    assignments: Assignments = None,
    seeds: Seeds = None,
    outside: Annotated[
        str | None,
        typer.Option("--ood", metavar="NAME|PATH", help="Outside set for tuning the detector."),
    ] = None,
    root: Root = None,
    device: Device = "auto",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: every round.")] = False,
) -> None:  # fmt: skip
    """Let a learner discover new classes, and compare with labelling at random.

    In each round, unlabelled rows arrive; those that the detector flags as novel are labelled,
    as many as --labels says, and learnt.
    """
    from dataclasses import asdict

    from engram.cli import execution
    from engram.cli.wide_tables import print_table
    from engram.errors import plural
    from engram.experiments import Recipe
    from engram.experiments.build_probes import build_detectors
    from engram.experiments.open_world import open_world
    from engram.experiments.overrides import set_values

    plain = execution.make_contents(
        data=data,
        methods=[method],
        model=model,
        seeds=seeds,
        columns=label or (),
        detectors=[detector],
        outside=outside,
    )
    for assignment in assignments or ():
        set_values(plain, assignment)
    _check_settings(plain[0])
    (asked,) = build_detectors(plain[0])
    recipe = Recipe.of({k: v for k, v in plain[0].items() if k != "detectors"})
    world = open_world(
        recipe.data(str(root.absolute()) if root else None), known=known, budget=labels, rate=rate,
        classes_per_round=classes_per_round, novel_share=novel_share, detector=asked,
        method=recipe.method, seeds=recipe.seeds, model=recipe.model, device=device,
        outside=plain[0].get("outside"), **asdict(recipe.training),
    )  # fmt: skip
    if csv:
        from engram.report.table import frame_to_csv

        emit(frame_to_csv(world.table))
        return
    runs = f"mean over {len(recipe.seeds)} seeds" if len(recipe.seeds) > 1 else "one seed"
    found = world.summary()
    counts = [name for name in found if (found[name] % 1 == 0).all() and found[name].max() > 1]
    found = found.astype(dict.fromkeys(counts, int))
    rounds = plural(int(world.table["round"].max()), "round")
    print_table(f"open world after {rounds}, {runs}", found)


def _check_settings(content: Mapping[str, Any]) -> None:
    """Raise for settings that the loop does not use."""
    from engram.errors import bad

    ours = ("method", "model", "training", "seeds", "detectors", "outside", "stream")
    wrong = [name for name in content if name not in ours]
    wrong += [
        f"stream.{name}" for name in content["stream"] if name not in ("data", "data_options")
    ]
    if len(content["detectors"]) != 1 or isinstance(content["detectors"], str):
        wrong.append("detectors")
    if wrong:
        expected = "values of method, model, training, data, the detector and the outside set"
        raise bad("--set", expected, wrong)
