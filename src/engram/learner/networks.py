"""`Net`, what a method's loss calls: networks with one run's weights, further networks, cached
teacher outputs, and passes split over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engram import distributed, keys
from engram.distributed import Ranks
from engram.errors import bad, unknown
from engram.learner.batch import Batch
from engram.learner.parameter_layout import Networks, TrainableSlices
from engram.learner.tensor_tree import tree_map
from engram.models.forward_pass import Output, Share, forward_context, share_context
from engram.models.functional_call import call_with_weights

MAX_REUSED_ANSWERS = (
    3  # how many a net remembers: a batch of the task, and two draws from the memory
)
Snapshot = Mapping[str, Any]  # {"vector": Tensor, "buffers": {name: Tensor}}


class Net:
    """Call it on inputs; reach other networks with `at`; old weights with `frozen`.

    `vector` holds the same numbers as the networks' weights, but penalties written on it are
    differentiated apart from the data terms: the gradient given to ``Method.step`` leaves them out.
    """

    networks: Networks
    main: str = "net"
    _trains = False  # whether this is the pass that ranks share out
    phase: str = "task"  # the name of the phase that trains
    kept: TeacherCache | None = None  # where a batch stays the same from step to step

    def __init__(
        self, networks: Networks, key: keys.Key | None, real: tuple[Tensor, ...] = ()
    ) -> None:
        self.networks = networks
        self._key = key
        self._real = real  # row weights none of which is 0: a pass with them is a plain one
        self._calls = 0
        self._answers: list[tuple[Tensor, Output]] = []  # to the last few inputs

    # -- what subclasses bring -----------------------------------------------------------------
    @property
    def vector(self) -> Tensor:
        raise NotImplementedError

    @property
    def params(self) -> Mapping[str, Tensor]:
        raise NotImplementedError

    def statistics(self) -> dict[str, Tensor]:
        """The present buffers."""
        raise NotImplementedError

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    # -- what methods call ---------------------------------------------------------------------
    def at(self, path: str, w: Tensor | None = None) -> Callable[..., Any]:
        """Any method of any network: ``net.at("generator.sample")(noise)``.

        Rows where `w` is 0 are left out of batch statistics.
        """
        weights = None if w is None or self.unpadded(w) else w

        def answer(*args: Any) -> Any:
            self._calls += 1
            key, own_noise = None, bool(self.networks.unmappable)
            if self._key is not None and (self.networks.draws or own_noise):
                key = keys.fold(self._key, "forward", self._calls)
            with forward_context(weights, key), _seed_torch(key if own_noise else None):
                return self._run(path, args)

        return answer if distributed.current_ranks() is None else partial(self._shared, path, w)

    def _shared(self, path: str, w: Tensor | None, *args: Any) -> Any:
        """The answer of `at` where several ranks compute it."""
        ranks = distributed.current_ranks()
        if ranks is None or not self._trains:
            with distributed.without_ranks():
                return self.at(path, w)(*args)
        weights = None if w is None or self.unpadded(w) else w
        self._calls += 1
        key: keys.Key | None = None
        if self._key is not None and self.networks.draws:
            key = keys.fold(self._key, "forward", self._calls)
        if path == self.main and can_split(ranks, args):

            def forward(x: Tensor, w: Tensor | None) -> Any:
                with forward_context(w, key):
                    return self._run(path, (x,))

            return run_split(ranks, forward, args[0], weights)
        with forward_context(weights, key):
            return run_repeated(ranks, lambda *whole: self._run(path, whole), args)

    def __call__(self, x: Tensor, w: Tensor | None = None, want: tuple[str, ...] = ()) -> Output:
        """Features and logits; `want` names submodules whose outputs come back as layers.

        Rows where `w` is 0 are left out of batch statistics, whoever trains beside this run. A
        second call on the very same tensor returns the first answer, so that joined methods share
        one forward pass; the weights of the first call count then.
        """
        for seen, answer in self._answers:
            if seen is x and all(name in answer.layers for name in want):
                return answer
        if not want:
            output: Output = self.at(self.main, w)(x)
        else:
            output = self._with_layers(x, w, want)
        self._answers = [(x, output), *self._answers[: MAX_REUSED_ANSWERS - 1]]
        return output

    def _with_layers(self, x: Tensor, w: Tensor | None, want: tuple[str, ...]) -> Output:
        with _capture_layers(self._skeleton(), want) as got:
            output: Output = self.at(self.main, w)(x)
        ranks = distributed.current_ranks()
        if self._trains and ranks is not None and can_split(ranks, (x,)):
            got = gather_answers(ranks, got, ranks.share(len(x)), len(x))
        return output._replace(layers=got)

    def _skeleton(self) -> torch.nn.Module:
        return self.networks.train

    def unpadded(self, w: Tensor) -> bool:
        """Whether all rows of these weights are known to count: a pass can do without them."""
        return any(w is one for one in self._real)

    def task(self, batch: Batch) -> Tensor:
        """The training objective (cross-entropy, class-balanced, binary) on the main network."""
        return self.networks.objective(self(batch.x, batch.w).logits, batch)

    def frozen(self, snapshot: Snapshot, path: str | None = None) -> Callable[..., Any]:
        """The networks with older weights, in eval mode, without gradient.

        ``net.frozen(snapshot)(x, want=names)`` has outputs of submodules as layers, too.
        """

        def make(*args: Any, want: tuple[str, ...] = ()) -> Any:
            weights = {**self.networks.layout(snapshot["vector"]), **snapshot["buffers"]}
            return self._judged(path or self.main, weights, args, want)

        def answer(*args: Any, want: tuple[str, ...] = ()) -> Any:
            if self.kept is None or path is not None or want:
                return make(*args, want=want)
            return self.kept.of(snapshot, args, lambda: make(*args))

        return answer

    def _judged(
        self, path: str, weights: dict[str, Tensor], args: tuple[Any, ...], want: tuple[str, ...]
    ) -> Any:
        """A pass in eval mode, without gradient."""

        def forward(x: Any, *rest: Any) -> Any:
            return call_with_weights(
                self.networks.eval, weights, (path, x, *rest), self.networks.ties
            )

        if want:  # each rank makes the whole of it
            with torch.no_grad(), forward_context(None, None):
                with _capture_layers(self.networks.eval, want) as got:
                    answer = forward(*args)
                return answer._replace(layers=got)
        ranks = distributed.current_ranks() if self._trains and path == self.main else None
        with torch.no_grad(), forward_context(None, None):
            if ranks is not None and can_split(ranks, args):
                return run_split(ranks, lambda x, _: forward(x), args[0], None)
            return forward(*args)

    def still(self, path: str | None = None) -> Callable[..., Any]:
        """The networks with the present weights, in eval mode, without gradient: as `frozen`."""

        def answer(*args: Any, want: tuple[str, ...] = ()) -> Any:
            weights = {**self.params, **self.statistics()}
            return self._judged(path or self.main, weights, args, want)

        return answer


@contextmanager
def _capture_layers(
    skeleton: torch.nn.Module, want: tuple[str, ...]
) -> Iterator[dict[str, Tensor]]:
    """What submodules answer while this lasts, by their names, such as ``net.backbone``."""
    got: dict[str, Tensor] = {}
    modules = dict(skeleton.named_modules())
    if missing := [name for name in want if name not in modules]:
        raise unknown("want", missing[0], [name for name in modules if name])
    hooks = [
        modules[name].register_forward_hook(
            lambda _m, _i, out, name=name: got.__setitem__(name, out)
        )
        for name in want
    ]
    try:
        yield got
    finally:
        for hook in hooks:
            hook.remove()
    if silent := [name for name in want if name not in got]:
        raise bad("want", "submodules that the forward pass calls", silent[0])


@contextmanager
def _seed_torch(key: keys.Key | None) -> Iterator[None]:
    """Let layers that know torch's generator only draw what the key decides; it stays as it was."""
    if key is None:
        yield
        return
    cuda = isinstance(key, Tensor) and key.is_cuda
    seed, devices = keys.torch_seed(key), [torch.cuda.current_device()] if cuda else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield


class FunctionalNet(Net):
    """Weights as arguments: maps over runs, and serves every pass on the host."""

    def __init__(
        self,
        networks: Networks,
        vector: Tensor,
        buffers: Mapping[str, Tensor],
        *,
        penalty: Tensor | None = None,
        key: keys.Key | None = None,
        real: tuple[Tensor, ...] = (),
        training: bool = True,
        still: tuple[TrainableSlices, Tensor] | None = None,
    ) -> None:
        """With `still` (what moves, and a whole vector) `vector` is the part that moves."""
        super().__init__(networks, key, real)
        self.buffers = dict(buffers)
        self._penalty = vector if penalty is None else penalty
        self._params: Mapping[str, Tensor]
        if still is None:
            self._params = networks.layout(vector)
        else:
            self._params = still[0].views(still[1], vector)
        self._still, self._part = still, vector
        self._training = training
        self.touched = False  # whether the loss wrote a penalty on `vector`

    @property
    def vector(self) -> Tensor:
        self.touched = True
        if self._still is not None:  # made when it is asked for: few losses do
            moving, whole = self._still
            return moving.whole(whole, self._part)
        return self._penalty

    @property
    def params(self) -> Mapping[str, Tensor]:
        return self._params

    def statistics(self) -> dict[str, Tensor]:
        return self.buffers

    def _skeleton(self) -> torch.nn.Module:
        return self.networks.train if self._training else self.networks.eval

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        # one dict: functional_call writes replaced buffers into it, a tuple would lose them
        weights = {**self._params, **self.buffers}
        answer = call_with_weights(self._skeleton(), weights, (path, *args), self.networks.ties)
        self.buffers = {k: weights[k] for k in self.buffers}
        return answer


# ------------------------------------------------------------------------------------------------
# Answers of older networks to a batch that stays the same from step to step: made once.


class TeacherCache:
    """Hands out what networks with older weights answered to the inputs of a batch.

    A loss is pure and `state` stays as it is, so it asks the same networks in every step, in the
    same sequence. Where nothing is `known` yet, answers are made and collected in `made`.

    Examples
    --------
    >>> import torch
    >>> x, state = torch.ones(2), {"teacher": {"vector": torch.zeros(3)}}
    >>> first = TeacherCache(x, state)
    >>> first.of(state["teacher"], (x,), lambda: "made"), first.made
    ('made', ['made'])
    >>> again = TeacherCache(x, state, known=("kept",))
    >>> again.of(state["teacher"], (x,), lambda: "made")
    'kept'
    >>> again.of(state["teacher"], (x + 1,), lambda: "other inputs")
    'other inputs'
    """

    def __init__(self, x: Tensor, state: Mapping[str, Any], known: tuple[Any, ...] = ()) -> None:
        self.made: list[Any] = []
        self._x, self._snapshots, self._known = x, list(_iterate_dicts(state)), iter(known)
        self._knows = bool(known)

    def of(self, snapshot: Any, args: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The answer of a snapshot that lies in the state to the batch's own inputs, or another."""
        same = len(args) == 1 and args[0] is self._x
        if not same or all(snapshot is not one for one in self._snapshots):
            return make()
        if self._knows:
            return next(self._known)
        self.made.append(make())
        return self.made[-1]


def _iterate_dicts(tree: Any) -> Iterator[Any]:
    """All dicts of a tree."""
    if isinstance(tree, Mapping):
        yield tree
    for part in tree.values() if isinstance(tree, Mapping) else tree:
        if isinstance(part, Mapping | tuple):
            yield from _iterate_dicts(part)


# ------------------------------------------------------------------------------------------------
# A forward pass of which every rank computes its share of the rows.
#
# A loss may be any function of a network's answers: means with denominators of their own, margins,
# projections. So it is not the loss that is shared out but the pass: each rank puts its rows
# through the network, all ranks get all answers, and each computes the whole loss from them. On the
# way back a rank follows its own rows only, and the sum of all ranks' gradients is that of one
# process.


ForwardPass = Callable[[Tensor, Tensor | None], Any]  # from inputs and row weights to answers


def run_split(ranks: Ranks, forward: ForwardPass, x: Tensor, w: Tensor | None) -> Any:
    """Answers to all rows of `x`, each row computed by one rank."""
    rows, where = len(x), ranks.share(len(x))
    own = _Scatter.apply(x, ranks, where)  # type: ignore[no-untyped-call]
    with share_context(Share(ranks, where.start, where.stop - where.start, rows)):
        found = forward(own, None if w is None else w[where])
    return gather_answers(ranks, found, where, rows)


def gather_answers(ranks: Ranks, found: Any, where: slice, rows: int) -> Any:
    """The answers of all ranks, in place of those of one."""
    return tree_map(lambda leaf: _Gather.apply(leaf, ranks, where, rows), found)  # type: ignore[no-untyped-call]


def can_split(ranks: Ranks | None, args: tuple[Any, ...]) -> bool:
    """Whether a pass can be shared out: one batch, with a row for every rank."""
    return (
        ranks is not None
        and len(args) == 1
        and isinstance(args[0], Tensor)
        and args[0].ndim > 0
        and len(args[0]) >= ranks.world
    )


def run_repeated(ranks: Ranks, forward: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A pass that every rank computes as a whole; weights get one share of its gradient each."""
    whole = tuple(scale_gradient(one, float(ranks.world)) for one in args)
    return tree_map(lambda leaf: scale_gradient(leaf, 1 / ranks.world), forward(*whole))


def scale_gradient(value: Any, factor: float) -> Any:
    """The same value, whose gradient is multiplied by a factor."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    return _ScaleGradient.apply(value, factor)  # type: ignore[no-untyped-call]


class _Scatter(torch.autograd.Function):
    """One rank's rows; the gradient of all rows is what all ranks found."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, where: slice) -> Tensor:
        ctx.ranks, ctx.where, ctx.rows = ranks, where, len(x)
        return x[where].clone() if x.requires_grad else x[where]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.ranks.joined(grad, ctx.where, ctx.rows), None, None


class _Gather(torch.autograd.Function):
    """The rows of all ranks; a rank goes on with the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: Ranks, where: slice, rows: int) -> Tensor:
        ctx.where = where
        return ranks.joined(own, where, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad[ctx.where], None, None, None


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None
