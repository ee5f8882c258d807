"""The exceptions of the library, checks of arguments that raise them, and suggestions for misspelt
names.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

USER_MODULES: set[str] = set()  # modules imported by name on behalf of the user
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
MAX_INT = 2**63 - 1  # the largest integer that a tensor can hold


class EngramError(Exception):
    """Base class of all errors of the library."""


class AccessError(EngramError):
    """A method tried to read data that it may not see at this point of the stream."""


class Forbidden(AccessError, AttributeError):
    """A method tried to use an attribute of its learner or stream reserved for the engine."""


class RecordError(EngramError):
    """A file of a run directory is missing, unreadable, or inconsistent with the others."""


class BadArgument(EngramError, ValueError):
    """An argument has an invalid value.

    `kind` lets callers distinguish ``unknown`` (a name that is not in a list of names) and
    ``absent`` (a data set that is not available); it is empty otherwise. `near` is the valid name
    that the message suggests in place of an unknown one, if any.
    """

    kind: str = ""
    near: str | None = None

    @property
    def argument(self) -> str:
        """What the message names before its colon, such as ``epochs``; empty where it names none.

        Examples
        --------
        >>> BadArgument("epochs: expected a whole number of at least 1, got 0").argument
        'epochs'
        """
        name, colon, _ = str(self).partition(": ")
        return name if colon else ""

    def with_kind(self, kind: str) -> BadArgument:
        """Set `kind` and return the error."""
        self.kind = kind
        return self


class UnknownField(BadArgument, TypeError):
    """A constructor was called with an unknown argument."""


def bad(argument: str, expected: str, got: Any) -> BadArgument:
    """Make the error for an invalid argument, to be raised by the caller.

    Examples
    --------
    >>> raise bad("epochs", "a whole number above 0", -3)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: epochs: expected a whole number above 0, got -3
    """
    shown = repr(got)
    if len(shown) > 200:
        shown = shown[:200] + "..."
    return BadArgument(f"{argument}: expected {expected}, got {shown}")


def unknown(argument: str, name: object, valid: Iterable[str]) -> BadArgument:
    """Make the error for a name that is not in a list of names; it suggests the nearest one.

    Examples
    --------
    >>> raise unknown("policy", "hearding", ["random", "herding"])
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: policy: unknown name 'hearding', did you mean 'herding'? ...
    >>> raise unknown("table", "x", ["10", "fig2", "9"])
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: table: unknown name 'x'. Valid: 9, 10, fig2
    """
    names = sorted(map(str, valid), key=_natural_order)
    guess = suggest_name(str(name), names)
    hint = f", did you mean {guess!r}?" if guess else "."
    text = f"{argument}: unknown name {name!r}{hint} Valid: {', '.join(names)}"
    error = BadArgument(text).with_kind("unknown")
    error.near = guess
    return error


def check_fields(kind: type, given: Iterable[str]) -> None:
    """Raise `UnknownField` for names that the constructor of a class does not accept.

    Examples
    --------
    >>> check_fields(dict, [])
    >>> class EWC:
    ...     def __init__(self, *, strength=1.0): ...
    >>> check_fields(EWC, ["ewc_lambda"])
    Traceback (most recent call last):
    ...
    engram.errors.UnknownField: EWC: unknown name 'ewc_lambda', did you mean 'strength'? ...
    """
    names = list(given)
    if not names:
        return
    known = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    if any(field.kind is field.VAR_KEYWORD for field in known):
        return
    for name in names:
        if name not in {field.name for field in known}:
            raise UnknownField(str(unknown(kind.__name__, name, [field.name for field in known])))


def _natural_order(name: str) -> list[tuple[bool, int, str]]:
    """Sort key that compares numbers inside names by value: table 9 comes before table 10."""
    parts = re.split(r"(\d+)", name)
    decimal = [(part.isdecimal(), part) for part in parts if part]
    return [(not number, int(part) if number else 0, part) for number, part in decimal]


def check_choice(argument: str, name: str, valid: Iterable[str]) -> str:
    """Return `name` if it is valid, raise otherwise.

    Examples
    --------
    >>> check_choice("head", "single", ["single", "multi"])
    'single'
    """
    names = list(valid)
    if name not in names:
        raise unknown(argument, name, names)
    return name


def check_int(argument: str, value: Any, low: int = 0, high: int = MAX_INT) -> int:
    """Return `value` if it is a whole number of at least `low` and at most `high`, raise otherwise.

    Examples
    --------
    >>> check_int("batch_size", 64, low=1)
    64
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise bad(argument, f"a whole number of at least {low}", value)
    if value > high:
        raise bad(argument, f"a whole number of at most {high}", value)
    return value


def check_float(
    argument: str, value: Any, low: float = 0.0, high: float = float("inf"), open_low: bool = False
) -> float:
    """Return `value` if it is a finite number in [low, high] (or (low, high]), raise otherwise.

    Examples
    --------
    >>> check_float("alpha", 0.9, 0.0, 1.0)
    0.9
    >>> check_float("lr", -1.0, open_low=True)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: lr: expected a number above 0, got -1.0
    """
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not (low < value if open_low else low <= value) or not value <= high:
        bracket = "(" if open_low else "["
        end = f"{'above' if open_low else 'of at least'} {low:g}"
        inside = end if math.isinf(high) else f"in {bracket}{low:g}, {high:g}]"
        raise bad(argument, f"a number {inside}", value)
    if isinstance(value, int) and abs(value) > MAX_INT:
        raise bad(argument, f"a whole number of at most {MAX_INT} in size, or a float", value)
    if math.isinf(value):
        raise bad(argument, "a finite number", value)
    result: float = value
    return result


def check_bool(argument: str, value: Any) -> bool:
    """Return `value` if it is True or False, raise otherwise (the string "no" is truthy).

    Examples
    --------
    >>> check_bool("again", False)
    False
    """
    if not isinstance(value, bool):
        raise bad(argument, "True or False", value)
    return value


def refuse(argument: str, expected: str, got: Any) -> NoReturn:
    """Raise the error of `bad`."""
    raise bad(argument, expected, got)


@contextmanager
def wrap_read_errors(
    source: object, what: str, kind: type[EngramError] = RecordError
) -> Iterator[None]:
    """Turn any error while reading a file into one that says that the file is invalid.

    Invalid content can make a reader fail in any way: a missing key, a list instead of a number, a
    wrong shape. Errors of the library, of the disk and of user code are raised unchanged.

    Examples
    --------
    >>> with wrap_read_errors("run/ledger.json", "ledger"):
    ...     {}["runs"]
    Traceback (most recent call last):
    ...
    engram.errors.RecordError: run/ledger.json: is not a valid ledger (KeyError: 'runs')
    """
    try:
        yield
    except (EngramError, OSError, MemoryError, Warning):
        raise
    except Exception as problem:
        if user_code_location(problem):
            raise
        message = " ".join(str(problem).split())[:200]
        reason = f"{type(problem).__name__}: {message}" if message else type(problem).__name__
        raise kind(f"{source}: is not a valid {what} ({reason})") from problem


def user_code_location(error: BaseException) -> str:
    """Return ``file.py:7``, the innermost line of user code that an error came through, or "".

    User code starts in a module that was loaded by name; the code it calls is user code as well,
    unless it belongs to this library or to an installed package.

    Examples
    --------
    >>> user_code_location(ValueError("raised nowhere"))
    ''
    """
    if isinstance(error, SyntaxError) and error.filename and USER_MODULES:
        return (
            f"{_short_path(error.filename)}:{error.lineno}" if _is_user_code(error.filename) else ""
        )
    place, entered = "", False
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, named = frame.f_code.co_filename, frame.f_globals.get("__name__") in USER_MODULES
        entered = entered or named
        if named or (entered and _is_user_code(file)):
            place = f"{_short_path(file)}:{line}"
    return place


def _is_user_code(file: str) -> bool:
    path = os.path.abspath(file)
    installed = path.startswith((_PACKAGE, *_INSTALLED)) or "site-packages" in path
    return not installed and not file.startswith("<")


def count_library_frames() -> int:
    """The `stacklevel` of a warning in the name of the code that called the library.

    Examples
    --------
    >>> count_library_frames()
    1
    """
    level, frame = 1, sys._getframe().f_back
    while frame is not None and frame.f_back is not None:
        file = frame.f_code.co_filename
        if _is_user_code(file) or (file.startswith("<") and not file.startswith("<frozen")):
            return level
        level, frame = level + 1, frame.f_back
    return level


def _short_path(file: str) -> str:
    """Return the path relative to the working directory if the file is inside, else absolute."""
    path = os.path.relpath(file)
    return os.path.abspath(file) if path.startswith(os.pardir) else path


def describe_user_error(error: BaseException) -> str:
    """Describe an error that came through user code in one line: location, type and message.

    Empty for other errors.
    """
    place = user_code_location(error)
    if not place:
        return ""
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    if "non-frozen dataclass from a frozen one" in message:
        message += " (write @dataclass(frozen=True, kw_only=True) above the class)"
    kind = "" if isinstance(error, EngramError) else type(error).__name__
    return ": ".join(part for part in (place, kind, message) if part)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; torch says so only in the message.

    Examples
    --------
    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    """
    messages = (
        "allocate memory",
        "not enough memory",
        "out of memory",
        "bad_alloc",
        "start new thread",
        "Storage size calc",
    )
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(message in str(error) for message in messages)


# -- suggestions for misspelt names, and plurals ---------------------------------------------------

# Names used by PyTorch, other libraries and papers: letters only, as compared by `suggest_name`. A
# synonym may belong to several names; it is suggested if the name is valid in the context.
FIELD_SYNONYMS = {
    "lr": "learningrate stepsize eta",
    "epochs": "numepochs nepochs trainepochs maxepochs",
    "batch_size": "bs minibatchsize trainbatchsize trainmbsize",
    "weight_decay": "wd l2",
    "accumulate": "accumulategradbatches gradientaccumulationsteps accumulationsteps",
    "ema": "exponentialmovingaverage averagedmodel emadecay polyak swa",
    "warmup_steps": "warmup numwarmupsteps linearwarmup",
    "clip_value": "clipgradvalue gradientclipval",
    "clip": "clipgradnorm maxnorm maxgradnorm gradclip",
    "label_smoothing": "smoothing labelsmoothingfactor",
    "precision": "amp mixedprecision fp16 bf16 half",
    "total": "size capacity memsize buffersize maxsize",
    "loss": "criterion objective lossfn",
    "schedule": "lrscheduler lrschedule",
    "seeds": "seed nseeds numseeds randomstate repetitions repeats",
    "model": "net network backbone architecture arch",
    "method": "strategy algorithm approach plugins plugin",
    "data": "dataset benchmark",
    "strength": "lambda lamda lamb ewclambda regstrength penalty",
    "memory": "buffer buffersize memsize memorysize replaybuffer",
    "classes_per_task": "increment nclassespertask",
    "hidden": "hiddensize hiddendim hiddensizes units",
}
SYNONYMS = {
    **FIELD_SYNONYMS,
    # losses
    "ce": "crossentropy crossentropyloss xent softmax nll nllloss categoricalcrossentropy",
    "bce": "binarycrossentropy binarycrossentropywithlogits sigmoid multilabelsoftmarginloss",
    # optimisers, schedules, precision, devices, augmentations
    "sgd": "momentum nesterov",
    "step": "multisteplr multistep",
    "plateau": "reducelronplateau reduceonplateau",
    "cosine": "cosineannealing cosineannealinglr cos",
    "constant": "none constantlr fixed",
    "float32": "fp32 single full 32",
    "float64": "fp64 double 64",
    "bf16": "bfloat16 16 amp mixed autocast",
    "fp16": "float16 half",
    "cuda": "gpu",
    "crop": "randomcrop",
    "resized_crop": "randomresizedcrop",
    "flip": "randomhorizontalflip horizontalflip",
    # methods
    "Finetune": "naive sequential baseline sgdbaseline vanilla none lowerbound",
    "Joint": "multitask offline upperbound jointtraining iid",
    "IncrementalJoint": "cumulative",
    "EWC": "elasticweightconsolidation",
    "SI": "synapticintelligence pathintegral pi",
    "MAS": "memoryawaresynapses",
    "LwF": "learningwithoutforgetting",
    "ER": "experiencereplay",
    "DERpp": "der der++ darkexperiencereplay",
    "EWCpp": "ewc++",
    "GEM": "gradientepisodicmemory",
    "AGEM": "averagedgem",
    "DGR": "generativereplay deepgenerativereplay",
    "NaiveRehearsal": "rehearsal",
    "RWalk": "riemannianwalk",
    # networks
    "mlp": "fc linear dense perceptron simplemlp",
    "cnn": "convnet simplecnn conv",
    # metrics
    "backward_transfer": "bwt",
    "forward_transfer": "fwt",
    "average_accuracy": "acc aca accuracy",
    "auroc": "auc rocauc",
    # pools
    "processes": "multiprocessing workers",
    "serial": "sequential",
}
MODULE_PREFIXES = ("torch", "torchvision", "nn", "optim", "F")  # ignored in front of a name


def suggest_name(name: object, valid: Iterable[str]) -> str | None:
    """Return the valid name that was probably meant: a synonym, misspelt, or abbreviated.

    At most a third of the letters, and at most three, may be wrong, missing, added or swapped with
    a neighbour; case, underscores, hyphens and leading PyTorch modules are ignored. (`difflib`
    suggests SI for "size", and nothing for "temp".)

    Examples
    --------
    >>> (
    ...     suggest_name("finetun", ["Finetune", "ER"]),
    ...     suggest_name("batch", ["batch_size", "patience"]),
    ... )
    ('Finetune', 'batch_size')
    >>> (
    ...     suggest_name("strenght", ["latent", "strength"]),
    ...     suggest_name("strenght", ["latent", "length"]),
    ... )
    ('strength', None)
    >>> (
    ...     suggest_name("CrossEntropyLoss", ["bce", "ce"]),
    ...     suggest_name("torch.optim.AdamW", ["adam", "adamw"]),
    ... )
    ('ce', 'adamw')
    """
    given = _letters(name)
    names = {one: _letters(one) for one in valid}
    same = [one for one in names if given in SYNONYMS.get(one, "").split()]
    longer = [one for one, letters in names.items() if _is_prefix(letters, given)]
    slips = {one: edit_distance(given, letters) for one, letters in names.items()}
    near = [one for one in names if slips[one] <= min(3, max(len(given), len(names[one])) // 3)]
    shorter = [one for one, letters in names.items() if _is_prefix(given, letters)]
    candidates = same or longer or near or shorter
    return min(candidates, key=lambda one: (slips[one], len(one)), default=None)


def edit_distance(a: str, b: str) -> int:
    """Count the letters to change, add, drop or swap with a neighbour to turn `a` into `b`.

    Examples
    --------
    >>> (
    ...     edit_distance("strenght", "strength"),
    ...     edit_distance("hearding", "herding"),
    ...     edit_distance("ER", "SI"),
    ... )
    (1, 1, 2)
    """
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        oldest, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and (x, y) == (b[j - 2], a[i - 2]):
                cost = min(cost, oldest[j - 2] + 1)
            row.append(cost)
    return row[-1]


def _letters(name: object) -> str:
    text = str(name)
    if text.partition(".")[0] in MODULE_PREFIXES:
        text = text.rpartition(".")[2]
    return text.lower().replace("_", "").replace("-", "").replace(" ", "")


def _is_prefix(long: str, short: str) -> bool:
    """Whether a name begins with another one of at least three letters."""
    return len(short) >= 3 and long.startswith(short)


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    Examples
    --------
    >>> plural(1, "run"), plural(3, "class"), plural(1200, "row")
    ('1 run', '3 classes', '1,200 rows')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")
