"""`Method`, the contract of a method, with what it declares (`ReplaySpec`, `Phase`, `Prologue`) and
the checks of its verbs.

A method is a frozen dataclass of hyper-parameters, written for *one* learner. The engine maps it
over many runs, so every verb marked as pure is a function of tensors only: no ``.item()``, no
``if tensor``, no boolean indexing; use ``torch.where`` and weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn

from engram import keys
from engram.errors import BadArgument, bad, check_choice, check_fields, check_float, check_int
from engram.learner.batch import Batch, Clock
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.learner.parameter_layout import MethodNetworks, Network, network_modules
from engram.memory import Memory
from engram.models.forward_pass import Output
from engram.renamed import accept_old_names
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

__all__ = [
    "DECISIONS",
    "ARGMAX_OR_THRESHOLD",
    "REPLAYS",
    "Gradient",
    "Method",
    "MethodNetworks",
    "Network",
    "Offer",
    "Phase",
    "Prologue",
    "ReplaySpec",
    "RootFile",
    "Slots",
    "State",
    "Terms",
    "Update",
]
TASK_IDENTITIES = ("ignored", "used", "required")
FROZEN_TRANSFORMER = "frozen transformer"
NEEDED_MODELS = ("any", FROZEN_TRANSFORMER)
REPLAYS = ("none", "union", "pair", "separate", "tasks", "past", "complete")
REWRITABLE = ("union", "pair", "separate", "tasks")  # kinds whose rows are in the memory
# how predictions follow from scores, for rows with one label and for rows with a set of labels
DECISIONS = {"single": "argmax", "set": "threshold"}
ARGMAX_OR_THRESHOLD = ("argmax", "threshold")
State = dict[str, Any]
Terms = dict[str, Tensor]
HostVerb = Callable[[RunLearner, Task], None]  # plain Python for one learner


@dataclass(frozen=True)
class Gradient:
    """Gradients [P] of `Method.loss`, as passed to `Method.gradient`.

    ``grad(batch)`` is the gradient of all terms, ``grad(batch, "task")`` of some, and
    ``grad(batch, at=v)`` the gradient at other weights (look-ahead, sharpness-aware minimisation).
    Pass additional tensors to the loss with ``batch._replace(values=...)``. ``grad.given(v)`` are
    the networks with other weights, to be called without a gradient.
    """

    compute: Callable[..., Tensor]
    vector: Tensor  # [P] the current weights
    layout: Callable[[Tensor], dict[str, Tensor]]  # named views of a vector [P]
    given: Callable[[Tensor], Net]
    kept: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, **values: Tensor) -> None:
        """Pass tensors of fixed shapes to `Method.step`, which reads them as ``update.kept``.

        Examples
        --------
        >>> import torch
        >>> zero = torch.zeros(1)
        >>> grad = Gradient(lambda *_: zero, zero, lambda _: {}, given=lambda _: None)
        >>> grad.keep(length=torch.ones(()))
        >>> Update(zero, zero, zero, torch.tensor(1), kept=grad.kept).kept
        {'length': tensor(1.)}
        """
        self.kept.update({name: value.detach() for name, value in values.items()})

    def __call__(self, batch: Batch, *names: str, at: Tensor | None = None) -> Tensor:
        return self.compute(batch, names, at)


@dataclass(frozen=True)
class Update:
    """An optimiser step of one run, as passed to `Method.step`."""

    before: Tensor  # [P] the weights before the step
    after: Tensor  # [P] the weights after it
    grad: Tensor  # [P] gradient of the loss, without the part of penalties on `net.vector`
    number: Tensor  # [] steps taken in this task, this one included
    # whether a period ends for any run that trains together with this one; None: it is alone
    due: Callable[[int], bool] | None = None
    key: Tensor | None = None  # [] that of the batch: fold a name into it
    times: tuple[Tensor, ...] = ()  # those of `clock` that follow the number of steps
    # what `gradient` kept by ``grad.keep(name=value)``
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    # named views of a vector [P]
    layout: Callable[[Tensor], dict[str, Tensor]] = field(default=lambda _: {}, repr=False)

    @property
    def clock(self) -> Clock:
        """That of the step's batch."""
        return Clock(self.number - 1, *self.times)

    def every(self, period: int) -> Tensor | None:
        """Whether this step is a multiple of `period`: a mask [], or None if it is for no run.

        For work that is too expensive for every step: it costs nothing in steps that give None.

        Examples
        --------
        >>> import torch
        >>> zero = torch.zeros(1)
        >>> fourth = Update(zero, zero, zero, number=torch.tensor(4))
        >>> fourth.every(2), fourth.every(3)
        (tensor(True), None)
        """
        ends = self.number % period == 0
        return ends if (bool(ends) if self.due is None else self.due(period)) else None


class Offer(NamedTuple):
    """A row that passes by a memory, for `Method.admit`."""

    y: Tensor  # [L] labels as output columns, -1 pads
    stage: Tensor  # [] its task
    values: Mapping[str, Tensor]  # [...] what `Method.remember` returned for it
    key: Tensor  # [] randomness of this decision

    @property
    def target(self) -> Tensor:
        """[] the first label."""
        return self.y[0]


class Slots(NamedTuple):
    """What a memory of M slots holds when a row passes by, for `Method.admit`."""

    y: Tensor  # [M, L] labels as output columns, -1 pads
    stage: Tensor  # [M] task in which the row was stored
    values: Mapping[str, Tensor]  # [M, ...] what is stored with the rows
    used: Tensor  # [M] slots in use, the first ones
    seen: Tensor  # [] rows that passed by before

    @property
    def target(self) -> Tensor:
        """[M] the first label; -1 for free slots."""
        return torch.where(self.used, self.y[:, 0], -1)

    @property
    def full(self) -> Tensor:
        """[] whether every slot is in use."""
        return self.used.all()

    def draw(self, weights: Tensor, key: keys.Key) -> Tensor:
        """Draw a slot [] with probability proportional to `weights` [M]; the first if all are 0.

        Examples
        --------
        >>> used = torch.tensor([True, True])
        >>> memory = Slots(torch.tensor([[0], [1]]), torch.zeros(2), {}, used, torch.tensor(2))
        >>> int(memory.draw(torch.tensor([0.0, 0.5]), torch.tensor(3)))
        1
        """
        total = torch.where(self.used, weights, 0).double().cumsum(0)
        point = keys.uniform(key).to(total.device) * total[-1]
        return (total <= point).sum().clamp(max=len(total) - 1) * (total[-1] > 0)


@accept_old_names
@dataclass(frozen=True)
class ReplaySpec:
    """Which rows a training batch contains besides those of the current task.

    ``none``: no others. ``union``: an epoch goes over the task and the whole memory, shuffled.
    ``pair``: `size` memory rows are added to every batch. ``separate``: they come by themselves, as
    ``batch.memory[0]``. ``tasks``: ``batch.memory`` has one batch per past task. ``past``: an epoch
    goes over the training rows of all tasks so far (needs ``reads = "past"``). ``complete``: the
    same, every row once, with all its labels opened so far. Size 0 means as many rows as the batch
    size, and for ``tasks`` the whole memory.

    ``renew="step"`` updates a reservoir at every step, or what `Method.admit` decides, so that
    batches also replay earlier rows of the current task; the engine then maintains the exemplars,
    and ``finish`` need not. With ``separate``, `draws` batches are drawn per step.

    ``latent=True`` trains only the top of the network, on latents: when the task begins, its rows
    go through the root once, in eval mode, and ``batch.x`` holds latents from then on; those of
    exemplars are what `Method.remember` stored under that name.

    ``rewrites=True`` gives stored values again to `Method.remember`: those of the memory rows of
    every batch, and those of all exemplars after a task. What it returns replaces them.
    """

    kind: str = "none"
    size: int = 0
    renew: str = "task"
    draws: int = 1
    latent: bool = False
    rewrites: bool = False

    def __post_init__(self) -> None:
        check_choice("replay.kind", self.kind, REPLAYS)
        check_int("replay.size", self.size)
        check_choice("replay.renew", self.renew, ("task", "step"))
        if self.renew == "step" and self.kind not in ("pair", "separate"):
            raise bad("replay.renew", "'task' unless the kind is pair or separate", self.renew)
        if check_int("replay.draws", self.draws, 1) > 1 and self.kind != "separate":
            raise bad("replay.draws", "1 unless the kind is separate", self.draws)
        if self.latent and (self.kind in ("past", "complete") or self.renew == "step"):
            wanted = "False where inputs of earlier tasks are read, or renew is 'step'"
            raise bad("replay.latent", wanted, self.latent)
        if self.rewrites and (self.latent or self.kind not in REWRITABLE):
            wanted = f"False unless inputs are replayed as {' or '.join(REWRITABLE)}"
            raise bad("replay.rewrites", wanted, self.rewrites)

    def __repr__(self) -> str:
        more = {f.name: getattr(self, f.name) for f in fields(self)[2:]}
        changed = [f"{k}={v!r}" for k, v in more.items() if v != getattr(ReplaySpec, k)]
        return f"ReplaySpec({', '.join([f'kind={self.kind!r}', f'size={self.size}', *changed])})"


@accept_old_names
@dataclass(frozen=True)
class Phase:
    """One training phase of a task: on which rows, for how long, which parameters.

    Parameters
    ----------
    rows
        ``task``: rows of the task, with what `Method.replay` adds; ``memory``: the exemplars;
        ``both``: the task and the exemplars, shuffled; ``none``: no training at all.
    name
        Value of ``net.phase`` during the phase, for a loss that depends on it.
    reinitialise
        Start from the run's initial weights.
    trainable
        Prefixes of parameter names, such as ``"net.head"``; only those are trained. Empty: all.
    epochs, iterations, lr
        Override the recipe's; 0 keeps them.
    needs
        Prefixes of parameter names, such as ``"net.backbone"``, for whose sake the phase trains: it
        is left out where there is no such parameter, as under a frozen backbone. Empty: it is not.
    before
        A function ``before(learner, task)`` of the method, called on the host before the phase, the
        first one included (there after `Method.start`). It may change the same as `start`: prune
        the network, choose the exemplars that the phase trains on, take a snapshot.

    Examples
    --------
    >>> Phase(rows="memory", reinitialise=True, epochs=30)
    Phase(rows='memory', name='task', reinitialise=True, trainable=(), epochs=30, ...)
    """

    rows: str = "task"
    name: str = "task"
    reinitialise: bool = False
    trainable: tuple[str, ...] = ()
    epochs: int = 0
    iterations: int = 0
    lr: float = 0.0
    needs: tuple[str, ...] = ()
    # what it does depends on the method, which is compared for itself
    before: HostVerb | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("phase.rows", self.rows, ("task", "memory", "both", "none"))
        check_int("phase.epochs", self.epochs)
        check_int("phase.iterations", self.iterations)
        check_float("phase.lr", self.lr)
        texts = isinstance(self.needs, tuple) and all(isinstance(one, str) for one in self.needs)
        if not texts:
            raise bad("phase.needs", "a tuple of prefixes of parameter names", self.needs)
        if self.epochs and self.iterations:
            raise bad("phase.iterations", "0 where epochs are given", self.iterations)
        if self.before is not None and (not callable(self.before) or self.rows == "none"):
            wanted = "a function (learner, task), of a phase that trains"
            raise bad("phase.before", wanted, self.before)


@dataclass(frozen=True)
class Prologue:
    """Pretraining of the root before the first task, on rows set aside from all tasks.

    The whole network is trained on them with all classes open; then its top and its head are
    reinitialised, and the root is frozen.

    Parameters
    ----------
    share
        Share of every task's training rows, which are then removed from the task.
    iterations, batch_size
        Number of steps, and rows per step; everything else is as in the recipe.
    lr
        Learning rate; 0: the recipe's.

    Examples
    --------
    >>> Prologue(share=0.1)
    Prologue(share=0.1, iterations=1000, batch_size=32, lr=0.0)
    """

    share: float = 1 / 6
    iterations: int = 1000
    batch_size: int = 32
    lr: float = 0.0

    def __post_init__(self) -> None:
        check_float("prologue.share", self.share, 0.0, 1.0, open_low=True)
        check_int("prologue.iterations", self.iterations, 1)
        check_int("prologue.batch_size", self.batch_size, 1)
        check_float("prologue.lr", self.lr)


@dataclass(frozen=True)
class RootFile:
    """Initial weights of the model's root: a file and its SHA-256."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Method:
    """Base class of all methods; as it stands, it is finetuning.

    Override what differs. ``start``, ``finish`` and what a `Phase` calls before it run on the host
    for one learner and may use any Python; the other verbs are pure.
    """

    def __new__(cls, *_args: Any, **fields: Any) -> Self:
        check_fields(cls, fields)
        return super().__new__(cls)

    # -- declarations, which a class overrides by an attribute or, if they follow from its options,
    # -- by a property

    @property
    def reads(self) -> str:
        """``own``, or ``past``: may read the training rows of earlier tasks."""
        return "own"

    @property
    def head(self) -> str | Mapping[str, Any]:
        """The output layer it needs: linear | cosine | {"name": "cosine", "scale": 10}."""
        return "linear"

    @property
    def decides(self) -> tuple[str, ...]:
        """How predictions can be made from its scores: by argmax, or also by a threshold.

        The latter (`ARGMAX_OR_THRESHOLD`) if training moves the score of each label above or below
        0, as `net.task` does on label sets.
        """
        return ("argmax",)

    @property
    def for_label_sets(self) -> str:
        """The options that allow a threshold, if others do not: for error messages."""
        return ""

    @property
    def task_identity(self) -> str:
        """What `answer` does with the task of a row, which multi-head streams give.

        ``ignored``: nothing, it is told -1. ``used``: it is told where the stream gives it.
        ``required``: streams that do not give it are refused.
        """
        return "ignored"

    @property
    def grows(self) -> bool:
        """Whether its state grows with the number of tasks."""
        return False

    @property
    def needed_model(self) -> str:
        """The model it needs: ``any``, or a ``frozen transformer`` to insert something into.

        Other models are refused then. The backbone's parameters are constants, which runs share;
        `net.insert` passes rows through it with `engram.models.Insertions`.
        """
        return "any"

    if TYPE_CHECKING:

        @property
        def memory(self) -> Memory | None:
            """The exemplar memory, if any; usually a field."""

    else:
        memory = None  # not a property, over which no field without a default could be set

    # -- verbs

    def replay(self, stage: int) -> ReplaySpec:
        """Which rows a batch contains; fixed within a stage."""
        return ReplaySpec()

    def prologue(self) -> Prologue | RootFile | None:
        """How the root of the model is pretrained before the first task; by default not at all."""
        return None

    def phases(self, stage: int) -> tuple[Phase, ...]:
        """The training phases of a task, in order."""
        return (Phase(),)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        """Additional networks of the learner, such as a generator; call them with ``net.at``.

        A `Network` instead of a module sets its learning rate and optimiser, and whether its bytes
        count as memory.
        """
        return {}

    def start(self, learner: RunLearner, task: Task) -> None:
        """Before a task: may change the learner's params, free and state."""

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        """Pure. Named terms; their sum is minimised, and each is logged by name."""
        return {"task": net.task(batch)}

    def remember(self, net: Net, batch: Batch, state: State) -> dict[str, Tensor]:
        """Pure. [B, ...] values stored with each exemplar and returned in ``batch.values``.

        For a reservoir updated at every step they come from the forward pass after which the row
        enters; otherwise from eval mode, after the verb that stored it (usually `finish`). They are
        evicted with their exemplar.

        With ``ReplaySpec(rewrites=True)`` it is called again with memory rows of every step and,
        after `finish`, in eval mode with all exemplars that have values. ``batch.values`` holds
        these: what is returned for a row in the memory (``batch.slot`` of at least 0) replaces its
        own, and no others. Of a row that a step draws twice, the first counts.
        """
        return {}

    def admit(self, row: Offer, memory: Slots, state: State) -> tuple[Tensor, State]:
        """Pure. The slot [] that a row of the task shall enter, -1 for none, and the state.

        Of replay with ``renew="step"`` and a memory of the policy ``"admit"``: in their first
        epoch, the rows of a batch pass by one after the other, before the weights move. As long as
        slots are free, a row that is not refused enters the next of them.
        """
        return torch.full_like(row.stage, -1), state

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        """Pure. The update direction [P]; ``grad(batch, *names)`` differentiates `loss`.

        `grad` must be called with the batch itself: that gradient is logged and passed to `step`.
        """
        return grad(batch)

    def step(self, update: Update, state: State) -> State | tuple[Tensor, State]:
        """Pure, after the optimiser: the state after an `Update`.

        Or ``(weights, state)``, to give the weights [P] other values than the optimiser did:
        projected, clipped, averaged. Entries that must not move keep theirs; the optimiser's own
        state is not touched.
        """
        return state

    def finish(self, learner: RunLearner, task: Task) -> None:
        """After a task: estimate importances, update the memory, fit a second stage."""

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        """Pure. Features [B, F] and scores ``logits`` [B, C] of rows, closed classes included.

        `stage` [] is the task of all these rows where the stream gives it, the method asks for it
        (`task_identity`) and the task has begun; otherwise -1, and rows of all tasks are mixed.
        The answers are evaluated, deployed and seen by detectors, from the first steps on
        (``evaluate_every``). A loss that trains them calls this verb:
        ``net.task(batch, logits=self.answer(net, batch.x, state, batch.now).logits)``. For batch
        normalisation give it a further argument ``w=None``, the row weights.
        """
        return net(x)

    def implements(self, verb: str) -> bool:
        """Whether the method overrides a verb."""
        return getattr(type(self), verb) is not getattr(Method, verb)

    def describe(self) -> dict[str, Any]:
        """Plain values: the name and every hyper-parameter."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"name": type(self).__name__} | {
            k: v.describe() if hasattr(v, "describe") else v for k, v in values.items()
        }


# -- checks of what verbs take and return ----------------------------------------------------------

VERBS = tuple(
    name
    for name, value in vars(Method).items()
    if inspect.isfunction(value) and name[0] != "_" and name not in ("implements", "describe")
)


REMOVED = {
    "scores": "let answer(net, x, state, stage) return net(x)._replace(logits=scores)",
    "interval": "let step(update, state) ask update.every(n), which is None in other steps",
    "every_n_steps": "let step(update, state) ask update.every(n)",
    "pace": "let step(update, state) ask update.every(n)",
    "memory_budget": "call it memory, a field or a property",
    "between": "let phases return Phase(..., before=self.prepare), a function (learner, task)",
}
# attributes of `Net`, and the parts of the main network: additional networks are attributes, too
RESERVED_NAMES = {name for name in dir(Net) if name[0] != "_"} | {
    "net", "networks", "backbone", "head", "root", "top", "at",
}  # fmt: skip
_CHECKED_CLASSES = WeakSet[type]()  # each class is checked once


def describe_wrong_arguments(kind: type[Method], verb: str) -> str:
    """Describe what is wrong with the signature of a verb; empty if nothing is.

    Examples
    --------
    >>> class Short(Method):
    ...     def loss(self, net, batch): ...
    >>> describe_wrong_arguments(Short, "loss")
    'loss is called with (net, batch, state), it takes (net, batch)'
    """
    wanted = list(inspect.signature(getattr(Method, verb)).parameters)[1:]
    call = f"({', '.join(wanted)})"
    written = inspect.getattr_static(kind, verb)
    bound = getattr(kind, verb)
    if not callable(bound):
        return f"{verb} must be a function of {call}"
    given = inspect.signature(bound)
    if not isinstance(written, staticmethod | classmethod):
        given = given.replace(parameters=list(given.parameters.values())[1:])
    try:
        given.bind(*wanted)
    except TypeError:
        return f"{verb} is called with {call}, it takes {given}"
    return ""


def check_arguments(method: Method) -> None:
    """Raise for a method with a verb that cannot be called as the engine calls it."""
    kind = type(method)
    if kind in _CHECKED_CLASSES:
        return
    for name, instead in REMOVED.items():
        if hasattr(kind, name):
            raise BadArgument(f"method: {kind.__name__}.{name} is not called any more: {instead}")
    for verb in VERBS:
        if fault := describe_wrong_arguments(kind, verb):
            raise BadArgument(f"method: {kind.__name__}.{fault}")
    _check_declared(method)
    _CHECKED_CLASSES.add(kind)


def _check_declared(method: Method) -> None:
    """Raise if what the method declares for the first two tasks has the wrong type."""
    name = type(method).__name__
    for stage in (0, 1):
        replay, phases = method.replay(stage), method.phases(stage)
        if not isinstance(replay, ReplaySpec):
            raise bad(f"{name}.replay({stage})", "a ReplaySpec to be returned", replay)
        listed = isinstance(phases, Sequence) and all(isinstance(p, Phase) for p in phases)
        if not listed:
            raise bad(f"{name}.phases({stage})", "a tuple of Phase to be returned", phases)
    before = method.prologue()
    if before is not None and not isinstance(before, Prologue | RootFile):
        raise bad(f"{name}.prologue", "a Prologue, a RootFile or None to be returned", before)


def check_loss_terms(method: Method, terms: Any) -> Terms:
    """Return what `loss` returned; raise unless it is a dict of terms."""
    if isinstance(terms, dict) and terms and all(map(_is_number, terms.values())):
        return terms
    raise bad(
        f"{type(method).__name__}.loss", "{name: term}, terms being tensors without axes", terms
    )


def _is_number(term: Any) -> bool:
    return isinstance(term, Tensor) and term.ndim == 0


def check_update_direction(method: Method, found: Any, vector: Tensor, asked: bool) -> Tensor:
    """Return what `gradient` returned; raise unless it is a vector and used `grad(batch)`."""
    where = f"{type(method).__name__}.gradient"
    if not isinstance(found, Tensor) or found.shape != vector.shape:
        got = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else found
        raise bad(where, f"a vector {tuple(vector.shape)} to be returned", got)
    if not asked:
        raise bad(where, "grad to be called with the batch it was given", "no such call")
    return found


def compute_answer(method: Method, net: Net, x: Tensor, state: State, stage: int = -1) -> Output:
    """Call `answer`; raise unless it returns features and a score for each row and class."""
    if not method.implements("answer"):
        return net(x)
    found: Any = method.answer(net, x, state, torch.tensor(stage, device=x.device))
    wanted = len(x), net.networks.classes
    scores = getattr(found, "logits", None)
    if isinstance(found, Output) and isinstance(scores, Tensor) and scores.shape == wanted:
        return found
    got = f"logits {tuple(scores.shape)}" if isinstance(scores, Tensor) else found
    raise bad(
        f"{type(method).__name__}.answer",
        f"an Output (net(x)._replace(logits=...)) with logits {wanted}, [rows, classes]", got,
    )  # fmt: skip


def tells_task(method: Method, head: str) -> bool:
    """Whether a method is told the tasks of rows on streams with this head.

    Examples
    --------
    >>> tells_task(Method(), "multi")
    False
    """
    return head == "multi" and method.task_identity != "ignored"


def rereads_rows(method: Method) -> bool:
    """Whether a method can read inputs of earlier tasks again: of its memory, or all of them.

    Examples
    --------
    >>> rereads_rows(Method())
    False
    """
    return method.reads == "past" or (method.memory is not None and not method.replay(1).latent)


def check_networks(method: Method, found: Any) -> MethodNetworks:
    """Return what `networks` returned; raise unless it is a dict of modules of known sizes."""
    where = f"{type(method).__name__}.networks"
    if not isinstance(found, Mapping) or not all(
        isinstance(one, nn.Module | Network) for one in found.values()
    ):
        raise bad(where, "{name: module} to be returned", found)
    if taken := sorted(set(found) & RESERVED_NAMES):
        raise bad(where, "names that attributes of net do not have", ", ".join(taken))
    for name, module in network_modules(found).items():
        for path, weight in module.named_parameters(name):
            if isinstance(weight, nn.parameter.UninitializedParameter):
                wanted = "layers of known sizes (stream.features is the width of the features)"
                raise bad(where, wanted, f"a lazy layer, {path.rpartition('.')[0]!r}")
    return found


def check_step(method: Method, found: Any, vector: Tensor) -> tuple[Tensor | None, State]:
    """Return the weights, if any, and the state that `step` returned; raise for anything else."""
    moved, state = found if isinstance(found, tuple) and len(found) == 2 else (None, found)
    where = f"{type(method).__name__}.step"
    if not isinstance(state, dict):
        raise bad(where, "a state to be returned, a dict, or (weights, state)", found)
    if moved is not None and (not isinstance(moved, Tensor) or moved.shape != vector.shape):
        got = f"a tensor {tuple(moved.shape)}" if isinstance(moved, Tensor) else moved
        raise bad(where, f"weights {tuple(vector.shape)} to be returned with the state", got)
    return moved, state
