"""Printing, errors and exit codes of all commands, and the requests stored in run directories."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, chdir, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from engram.errors import (
    FIELD_SYNONYMS,
    EngramError,
    RecordError,
    describe_user_error,
    is_out_of_memory,
    suggest_name,
)
from engram.process import Ended, exit_now, handle_end_signals, is_main_process
from engram.renamed import RenamedWarning, describe_rename, replace_old_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

BAD_INPUT = 2  # also the exit code of a misspelt option
FAILED = 1  # the command ran, but the outcome is bad
ALL_DIVERGED = 1
PROCESS_LOST = 75  # a process of a job was lost; finished stages are kept
INTERRUPTED = 130
# options with another name in an earlier version or another command
MOVED_OPTIONS = {
    ("reproduce", "--together"): "--group-size",
    ("sweep", "--together"): "--pool together",
    ("sweep", "--no-together"): "--pool serial",
}
PLAIN_WIDTH = 120  # columns of tables in files and pipes


def results_console() -> Console:
    """Return the console for results."""
    return _console(stderr=False)


def messages_console() -> Console:
    """Return the console for progress, warnings and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        """Console that escapes control characters in text."""

        def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
            for one in super().render(*args, **options):
                yield one if one.control else one._replace(text=escape_controls(one.text))

    console = Safe(stderr=stderr, highlight=False, emoji=False, quiet=not is_main_process())
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def say(text: str, *, style: str = "") -> None:
    """Print one line of message, unwrapped so that paths and commands can be copied."""
    messages_console().print(text, style=style or None, markup=False, soft_wrap=True)


def print_heading(text: str) -> None:
    """Print the name of a stream above its tables."""
    from rich.text import Text

    results_console().print(Text(f"\n{escape_controls(text)}", style="bold underline"))


def report_unreadable(result: Any) -> None:
    """Print the files that could not be read into a result."""
    for problem in result.problems:
        say(f"could not read: {problem}", style="yellow")


def emit(text: str) -> None:
    """Print text for other programs to read."""
    text = escape_controls(text)
    if not is_main_process():  # only one process of a job prints
        return
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


# control characters except line ends and tabs, and those that change the writing direction
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""Escape control characters, which a terminal would interpret.

    Examples
    --------
    >>> escape_controls("ER \x1b[31mred\x1b[0m")
    'ER \\x1b[31mred\\x1b[0m'
    """
    return _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)


class CommandGroup(TyperGroup):
    """The group of all commands, which prints user errors on one line, with exit code 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # --debug is allowed anywhere on the line
        ctx.meta["engram.debug"] = "--debug" in args
        kept = [arg for arg in args if arg != "--debug"]
        return super().parse_args(ctx, kept)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        rest, replaced = replace_old_options(str(name), rest)
        for old, new in replaced.items():
            say(f"warning: {describe_rename(old, new, f'engram {name}')}", style="yellow")
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        with shorten_warnings(), handle_end_signals(exit_now):
            try:
                return super().invoke(ctx)
            except Ended as error:
                say(f"engram: {stop_reason(error)}", style="yellow")
                raise typer.Exit(exit_code(error)) from None
            except Exception as error:
                if hasattr(error, "possibilities"):  # an unknown option
                    suggest_options(error)
                if ctx.meta["engram.debug"] or not is_user_error(error):
                    raise
                say(f"engram: {describe_error(error)}", style="red")
                raise typer.Exit(BAD_INPUT) from None


def is_user_error(error: BaseException) -> bool:
    """Return whether an error is the user's to fix, so that its message suffices."""
    if isinstance(error, BrokenPipeError):
        return False
    known = isinstance(error, EngramError | OSError)
    return known or is_out_of_memory(error) or bool(describe_user_error(error))


def exit_code(error: KeyboardInterrupt) -> int:
    """Return 128 plus the number of the signal, as shells do."""
    return 128 + error.number if isinstance(error, Ended) else INTERRUPTED


def stop_reason(error: KeyboardInterrupt) -> str:
    """Describe what ended a command early."""
    return f"Ended by {error.name}" if isinstance(error, Ended) else "Interrupted"


def suggest_options(error: Any) -> None:
    """Suggest similar options, other commands with the option, and --set for fields."""
    known = option_names(error.ctx.command)
    name = str(error.option_name).lstrip("-")
    near = suggest_name(name, [one.removeprefix("--") for one in known if one.startswith("--")])
    error.possibilities = None
    if moved := MOVED_OPTIONS.get((error.ctx.command.name, error.option_name)):
        error.message += f", it is called {moved} here"
    elif near:
        error.message += f", did you mean --{near}?"
    elif "--device" in known and suggest_name(name, ("cuda",)):
        error.message += ", did you mean --device cuda?"
    elif others := find_commands_with(error.option_name, error.ctx):
        error.message += f", it is one of {' and '.join(others)}"
    elif "--set" in known and error.option_name.startswith("--"):
        field = suggest_name(name, FIELD_SYNONYMS) or name.replace("-", "_")
        error.message += f". Fields of a recipe: --set {field}=VALUE"


def option_names(command: Any) -> list[str]:
    """List all options of a command."""
    return [
        one for option in command.params for one in (*option.opts, *option.secondary_opts)
        if one.startswith("-")
    ]  # fmt: skip


def find_commands_with(option: str, ctx: Any) -> list[str]:
    """List the other commands that make results and have an option."""
    group = ctx.find_root().command
    alike = {name: group.commands[name] for name in ("run", "sweep", "search", "resume")}
    if ctx.command not in alike.values():
        return []
    return [f"engram {name}" for name, command in alike.items() if option in option_names(command)]


def describe_error(error: BaseException) -> str:
    """Format an error on one line, with the line of user code that raised it.

    Examples
    --------
    >>> describe_error(OSError(28, "No space left on device", "runs"))
    "No space left on device: 'runs'"
    """
    if own := describe_user_error(error):
        return own
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename!r}" if error.filename is not None else ""
        return f"{error.strerror}{place}"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"out of memory: {text}" if is_out_of_memory(error) else text


@contextmanager
def shorten_warnings() -> Iterator[None]:
    """Return a context that prints each warning once, on one line without file names."""
    seen = set[str]()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in seen:
            seen.add(text)
            say(f"warning: {text}", style="yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("always", RenamedWarning)  # usually hidden, as for programmers only
        warnings.showwarning = show
        yield


# Requests, stored in run directories for ``engram resume``.


FOLDER = "requests"
MANY_RECIPES = 1000  # from which on a request is written as JSON, which is read far faster
# not part of the request's identity
RUN_OPTIONS = (
    "device", "address", "compile", "deterministic", "exact", "checkpoint_every", "log",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Request:
    """Recipes as plain values, and how to run them.

    `pool` is one of `engram.experiments.pools`; `search` has the options of a search over the one
    recipe; `folder` is the working directory, to which relative paths and user modules
    refer.
    """

    recipes: list[dict[str, Any]]
    root: str | None = None
    device: str = "auto"
    pool: str = "auto"
    workers: int = 0
    address: str | None = None
    compile: bool = False
    deterministic: bool = False
    exact: bool = False
    checkpoint_every: str = "5m"
    log: list[str] = field(default_factory=list)
    search: dict[str, Any] | None = None
    folder: str = field(default_factory=os.getcwd)
    command: str = field(default_factory=lambda: shlex.join(["engram", *sys.argv[1:]]))

    def write(self, out: Path) -> Path:
        """Write the request into a run directory, once."""
        from engram.io import make_folders, to_plain, write_json, write_yaml

        content = to_plain(asdict(self))
        if self.search is None:
            del content["search"]
        same = {k: v for k, v in content.items() if k not in ("command", *RUN_OPTIONS)}
        text = json.dumps(same, sort_keys=True, default=str)
        path = out / FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
        make_folders(out)
        make_folders(path.parent)
        if len(self.recipes) > MANY_RECIPES:
            return write_json(path.with_suffix(".json"), content)
        return write_yaml(path, content)

    def at_home(self) -> AbstractContextManager[None]:
        """Return a context in the request's working directory, if it still exists."""
        return chdir(self.folder) if Path(self.folder).is_dir() else nullcontext()

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a file is a request and not a recipe."""
        from engram.io import read_yaml_file

        content = read_yaml_file("recipe", path)
        return isinstance(content, Mapping) and {"recipes", "pool"} <= set(content)

    @classmethod
    def read(cls, path: Path) -> Request:
        """Read a request from its file."""
        from engram.io import read_json, read_yaml

        content = read_json(path) if path.suffix == ".json" else read_yaml(path)
        names = {f.name for f in fields(cls)}
        if not isinstance(content, Mapping) or not {"recipes"} <= set(content) <= names:
            raise RecordError(f"{path}: not a request of this version")
        return cls(**content)


def request_files(out: Path) -> list[Path]:
    """List the request files of a directory, oldest first."""
    files = (path for end in ("yaml", "json") for path in (out / FOLDER).glob(f"[!.]*.{end}"))
    return sorted(files, key=lambda path: path.stat().st_mtime)


def read_requests(out: Path) -> list[Request]:
    """Read the requests of a directory, oldest first."""
    return [Request.read(path) for path in request_files(out)]
