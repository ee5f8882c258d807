"""``engram serve``: a model behind HTTP."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import Device, Trust

LAST_PORT = 65_535
LOCAL = ("127.0.0.1", "localhost", "::1")


def command(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A model.engram; or a run directory, with --to FILE."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Access token (default: $ENGRAM_TOKEN)."),
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Require no token, even if other machines can reach it.")
    ] = False,
    most_bytes: Annotated[int, typer.Option(help="Largest request, in bytes.")] = 16 << 20,
    read_seconds: Annotated[
        float, typer.Option(help="Seconds within which a request must arrive.")
    ] = 10.0,
    queue: Annotated[int, typer.Option(help="Number of tasks that may wait for training.")] = 100,
    threads: Annotated[int, typer.Option(help="Threads per prediction.")] = 1,
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
    """Serve a model over HTTP: predict, novelty, learn, metrics, health, and a page to try it.

    Tasks sent to it are trained in a separate process, one after another; the file always holds the
    model after the last finished task.
    """
    from engram.cli.predict import open_model
    from engram.cli.shell import say
    from engram.errors import bad, whole

    _need_extra()
    token = token if token is not None else os.environ.get("ENGRAM_TOKEN", "")
    if host not in LOCAL and not token and not open_to_all:
        expected = f"a token, because other machines can reach {host} (or --open)"
        raise bad("--token", expected, "none")
    whole("--threads", threads, 1)
    if whole("--port", port) > LAST_PORT:
        raise bad("--port", f"a port from 0 to {LAST_PORT}", port)
    given = {"--to": to, "--label": label, "--seed": seed}
    if model.is_file() and (first := next((k for k, v in given.items() if v is not None), "")):
        raise bad(first, "no value with a model file: it is for run directories", given[first])

    import torch

    from engram.serve.app import create_app
    from engram.serve.limits import LOOPBACK, Limits
    from engram.serve.server import listening, server
    from engram.serve.service import Service, need_model

    if to is not None and model.is_dir():
        if to.exists():
            raise bad("--to", "a file that does not exist yet", str(to))
        model = open_model(model, label, seed, None, device, trust).save(to)
    limits = Limits(most_bytes=most_bytes, read_seconds=read_seconds)
    torch.set_num_threads(threads)
    with listening(host, port) as at:
        service = Service(
            need_model(model), device=device, trust=trust, queue=whole("--queue", queue, 1)
        )
        hosts = LOOPBACK if host in LOCAL else ()
        app = create_app(service, limits=limits, token=token, hosts=hosts)
        port = at.getsockname()[1]  # where 0 was asked for, one that was free
        say(f"{model} on http://{host}:{port} (API: /docs); press Ctrl-C to stop")
        server(app, host=host, port=port, limits=limits).run(sockets=[at])


def _need_extra() -> None:
    from engram.errors import EngramError

    wanted = ("fastapi", "uvicorn", "prometheus_client")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise EngramError(
            f"engram serve needs {' and '.join(missing)}: pip install 'engram[serve]'"
        )
