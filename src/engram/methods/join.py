"""`Join`: several methods combined into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from engram.errors import BadArgument, bad
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.learner_proxy import enter_part
from engram.learner.networks import Net
from engram.learner.parameter_layout import MethodNetworks, Network
from engram.memory import Memory
from engram.methods.method import (
    ARGMAX_OR_THRESHOLD,
    NEEDED_MODELS,
    TASK_IDENTITIES,
    Gradient,
    HostVerb,
    Method,
    Offer,
    Phase,
    Prologue,
    ReplaySpec,
    RootFile,
    Slots,
    State,
    Terms,
    Update,
    check_step,
)
from engram.models.build import check_head
from engram.models.forward_pass import Output
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

SINGLE = {
    "replay": "a memory or replay", "gradient": "a gradient", "answer": "an answer of its own",
    "remember": "values to remember", "phases": "phases", "prologue": "a prologue",
    "admit": "a memory that it fills row by row",
}  # fmt: skip


@dataclass(frozen=True, init=False)
class Join(Method):
    """Combine methods: their loss terms add up, and each keeps its own state.

    The task term counts once: that of the part with a memory, or else of the first part that has
    one. Other terms with equal names all count; the later ones are numbered by part. At most one
    part may have a memory, one `gradient` and one `answer`, and parts that need a particular head
    must need the same one. Nested Joins are flattened.

    Parameters
    ----------
    parts
        The methods, as positional arguments; nested Joins are flattened. On the command line:
        ``--method ER+LwF``.

    Examples
    --------
    >>> from engram.methods.er import ER
    >>> from engram.methods.lwf import LwF
    >>> Join(ER(), LwF()).describe()["parts"][1]["name"]
    'LwF'
    >>> Join(ER(), ER(mix="union"))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: parts: expected at most one part with a memory or replay, got ...
    """

    parts: tuple[Method, ...]

    def __init__(self, *parts: Method) -> None:
        for part in parts:
            if not isinstance(part, Method):
                raise bad("parts", "methods such as engram.methods.ER()", part)
        if not parts:
            raise bad("parts", "at least one method", parts)
        flat = (p.parts if isinstance(p, Join) else (p,) for p in parts)
        object.__setattr__(self, "parts", tuple(one for some in flat for one in some))
        for verb, words in SINGLE.items():
            owners = [str(part) for part in self.parts if _part_provides(part, verb)]
            if len(owners) > 1:
                expected = f"parts: expected at most one part with {words}"
                raise BadArgument(f"{expected}, got {' and '.join(owners)}")
        _common_head(self.parts)  # raises if there is none

    # -- declarations ----------------------------------------------------------------------------
    @property
    def reads(self) -> str:
        return "past" if any(part.reads == "past" for part in self.parts) else "own"

    @property
    def head(self) -> str | Mapping[str, Any]:
        return _common_head(self.parts)

    @property
    def decides(self) -> tuple[str, ...]:
        return tuple(
            how for how in ARGMAX_OR_THRESHOLD if all(how in part.decides for part in self.parts)
        )

    @property
    def task_identity(self) -> str:
        return max((part.task_identity for part in self.parts), key=TASK_IDENTITIES.index)

    @property
    def needed_model(self) -> str:
        return max((part.needed_model for part in self.parts), key=NEEDED_MODELS.index)

    @property
    def memory(self) -> Memory | None:
        budgets = (part.memory for part in self.parts)
        return next((budget for budget in budgets if budget is not None), None)

    def implements(self, verb: str) -> bool:
        """Whether some part overrides a verb."""
        return any(part.implements(verb) for part in self.parts)

    def replay(self, stage: int) -> ReplaySpec:
        owner = self._owner("replay")
        return ReplaySpec() if owner is None else self.parts[owner].replay(stage)

    def prologue(self) -> Prologue | RootFile | None:
        owner = self._owner("prologue")
        return None if owner is None else self.parts[owner].prologue()

    def phases(self, stage: int) -> tuple[Phase, ...]:
        owner = self._owner("phases")
        if owner is None:
            return (Phase(),)
        return tuple(
            replace(phase, before=partial(self._run_on_host, {owner: phase.before}))
            if phase.before
            else phase
            for phase in self.parts[owner].phases(stage)
        )

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        found: dict[str, nn.Module | Network] = {}
        for part in self.parts:
            brought = part.networks(stream)
            if twice := sorted(found.keys() & brought.keys()):
                raise bad("parts", "networks of different names", ", ".join(twice))
            found |= brought
        return found

    def describe(self) -> dict[str, Any]:
        return {"name": type(self).__name__, "parts": [part.describe() for part in self.parts]}

    # -- verbs -----------------------------------------------------------------------------------
    def _owner(self, verb: str) -> int | None:
        return next((i for i, part in enumerate(self.parts) if _part_provides(part, verb)), None)

    def _run_on_host(self, verbs: Mapping[int, HostVerb], learner: RunLearner, task: Task) -> None:
        """Call host verbs of some parts, each with its part's state as the learner's."""
        states = {str(i): part_state(learner.state, i) for i in range(len(self.parts))}
        for i, verb in verbs.items():
            with enter_part(learner, states, str(i)):
                verb(learner, task)
        learner.state = states

    def start(self, learner: RunLearner, task: Task) -> None:
        self._run_on_host({i: part.start for i, part in enumerate(self.parts)}, learner, task)

    def finish(self, learner: RunLearner, task: Task) -> None:
        self._run_on_host({i: part.finish for i, part in enumerate(self.parts)}, learner, task)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        memory = self._owner("replay")
        terms: Terms = {}
        for i in sorted(range(len(self.parts)), key=lambda i: i != memory):
            for name, term in self.parts[i].loss(net, batch, part_state(state, i)).items():
                if name not in terms:
                    terms[name] = term
                elif name != "task":
                    terms[f"{name}.{i}"] = term
        return terms

    def remember(self, net: Net, batch: Batch, state: State) -> dict[str, Tensor]:
        owner = self._owner("remember")
        if owner is None:
            return {}
        return self.parts[owner].remember(net, batch, part_state(state, owner))

    def admit(self, row: Offer, memory: Slots, state: State) -> tuple[Tensor, State]:
        owner = self._owner("admit")
        if owner is None:
            return super().admit(row, memory, state)
        slot, changed = self.parts[owner].admit(row, memory, part_state(state, owner))
        return slot, {**state, str(owner): changed} if str(owner) in state else state

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        owner = self._owner("gradient")
        if owner is None:
            return grad(batch)
        return self.parts[owner].gradient(grad, batch, part_state(state, owner))

    def step(self, update: Update, state: State) -> State | tuple[Tensor, State]:
        changed, moved = dict(state), None
        for i, part in enumerate(self.parts):
            if part.implements("step"):  # each sees the weights as the parts before it left them
                found = check_step(part, part.step(update, part_state(state, i)), update.after)
                weights, changed[str(i)] = found
                if weights is not None:
                    moved, update = weights, replace(update, after=weights)
        return changed if moved is None else (moved, changed)

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        owner = self._owner("answer")
        if owner is None:
            return net(x)
        return self.parts[owner].answer(net, x, part_state(state, owner), stage)


def part_state(state: State, part: int) -> State:
    """Return the state of one part; an empty state is not stored in checkpoints."""
    own: State = state.get(str(part), {})
    return own


def _common_head(parts: Sequence[Method]) -> str | Mapping[str, Any]:
    """Return the head required by the parts; a part with "linear" accepts any.

    Examples
    --------
    >>> from engram.methods.finetune import Finetune
    >>> _common_head([Finetune(), Finetune()])
    'linear'
    """
    found: dict[str, Any] = {}
    owners: dict[str, Method] = {}  # of each option, the name among them
    for part in parts:
        if part.head == "linear":
            continue
        for option, value in check_head(part.head).items():
            if option in found and found[option] != value:
                raise BadArgument(
                    f"parts: expected methods that need the same head, got {owners[option]} "
                    f"({option}={found[option]!r}) and {part} ({option}={value!r})"
                )
            found[option], owners[option] = value, part
    return "linear" if not found else found["name"] if len(found) == 1 else found


def _part_provides(part: Method, verb: str) -> bool:
    if verb == "replay":  # penalty methods implement it, but may have no memory
        return part.memory is not None or part.replay(1) != ReplaySpec()
    return part.implements(verb)
