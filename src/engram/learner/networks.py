"""`Net`, the networks as a method's loss calls them, with its functional form `FunctionalNet`,
cached teacher outputs, and forward passes split over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engram import distributed, keys
from engram.distributed import Ranks
from engram.errors import bad, check_choice, check_int, unknown
from engram.learner.batch import Batch
from engram.learner.feed import IMAGE_CHANGES, change_images
from engram.learner.parameter_layout import MAIN, Networks, TrainableSlices, Views
from engram.learner.row_features import digest
from engram.learner.tensor_tree import tree_map
from engram.models.forward_pass import (
    Output,
    Share,
    can_be_read,
    forward_context,
    share_context,
)
from engram.models.functional_call import call_with_weights, find_module

MAX_REUSED_OUTPUTS = 3  # enough for a batch of the task and two draws from the memory
Snapshot = Mapping[str, Any]  # {"vector": Tensor, "buffers": {name: Tensor}}


class Net:
    """The networks with the weights of one run: call it on inputs.

    Its attributes are the parts and methods of the main network, ``net.root(x)``,
    ``net.head.cosines(features)``, and the additional networks, ``net.generator.decode(z)``. See
    also `frozen` and `detached`. `vector` has the same values as the networks' weights, but
    penalties computed from it are differentiated separately: the gradient passed to ``Method.step``
    excludes them.
    """

    networks: Networks
    main: str = "net"
    _trains = False  # whether ranks split this forward pass
    _in_training = True  # whether layers such as dropout are in training mode
    phase: str = "task"  # name of the current training phase
    teacher_cache: TeacherCache | None = None  # if the batch is the same in every step

    def __init__(
        self, networks: Networks, key: keys.Key | None, real: tuple[Tensor, ...] = ()
    ) -> None:
        self.networks = networks
        self._key = key
        self._real = real  # row weights without zeros: a pass needs no masking
        self._calls = 0
        self._outputs: list[tuple[Tensor, Output]] = []  # for the last few inputs

    # -- implemented by subclasses -------------------------------------------------------------
    @property
    def vector(self) -> Tensor:
        raise NotImplementedError

    @property
    def params(self) -> Views:
        """The parameters by name, and as attributes: ``net.params.head.weight``."""
        raise NotImplementedError

    def statistics(self) -> dict[str, Tensor]:
        """Return the current buffers."""
        raise NotImplementedError

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    # -- for methods ---------------------------------------------------------------------------
    def __getattr__(self, name: str) -> NetworkPart:
        if name[:1] == "_" or name == "networks":  # not set yet
            raise AttributeError(name)
        return find_part(self._skeleton(), name, self._call)

    def _call(self, path: str, *args: Any, w: Tensor | None = None) -> Any:
        return self._bind(path, w)(*args)

    def _bind(self, path: str, w: Tensor | None = None) -> Callable[..., Any]:
        """Return a function that calls a method, given as ``generator.sample``, of a network.

        Rows where `w` is 0 are excluded from batch statistics.
        """
        weights = None if w is None or self.unpadded(w) else w

        def call(*args: Any) -> Any:
            self._calls += 1
            key, own_noise = None, bool(self.networks.unmappable)
            if self._key is not None and (self.networks.draws or own_noise):
                key = keys.fold(self._key, "forward", self._calls)
            with forward_context(weights, key), _seed_torch(key if own_noise else None):
                return self._run(path, args)

        return (
            call if distributed.current_ranks() is None else partial(self._call_on_ranks, path, w)
        )

    def _call_on_ranks(self, path: str, w: Tensor | None, *args: Any) -> Any:
        """Do the same as `_bind` on several ranks."""
        ranks = distributed.current_ranks()
        if ranks is None or not self._trains:
            with distributed.without_ranks():
                return self._bind(path, w)(*args)
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
        """Return features and logits; `want` names submodules whose outputs to return as layers.

        Rows where `w` is 0 are excluded from batch statistics. A second call with the same tensor
        object returns the output of the first one, so that joined methods share a forward pass; `w`
        of the second call is then ignored.
        """
        for known_x, known in self._outputs:
            if known_x is x and all(name in known.layers for name in want):
                return known
        if not want:
            output: Output = self._bind(self.main, w)(x)
        else:
            output = self._with_layers(x, w, want)
        self._outputs = [(x, output), *self._outputs[: MAX_REUSED_OUTPUTS - 1]]
        return output

    def _with_layers(self, x: Tensor, w: Tensor | None, want: tuple[str, ...]) -> Output:
        with _capture_layers(self._skeleton(), want) as layers:
            output: Output = self._bind(self.main, w)(x)
        ranks = distributed.current_ranks()
        if self._trains and ranks is not None and can_split(ranks, (x,)):
            layers = gather_outputs(ranks, layers, ranks.row_slice(len(x)), len(x))
        return output._replace(layers=layers)

    def _skeleton(self) -> torch.nn.Module:
        return self.networks.train

    def unpadded(self, w: Tensor) -> bool:
        """Whether none of these row weights is 0, so that a pass needs no masking."""
        return any(w is known for known in self._real)

    def may_omit_weights(self, w: Tensor) -> bool:
        """Whether rows that stand beside those of `w` in one pass may do without weights, too.

        Without padding, batch statistics are faster on CUDA, but rounded differently.
        """
        return w.is_cuda and self.unpadded(w)

    def task(self, batch: Batch, logits: Tensor | None = None) -> Tensor:
        """Compute the training objective (see `engram.learner.objectives`).

        `logits` [B, C] are those of the main network, unless others are given.
        """
        said = self(batch.x, batch.w).logits if logits is None else logits
        return self.networks.objective(said, batch)

    def views(
        self, batch: Batch, count: int = 2, changes: Sequence[str] = IMAGE_CHANGES, *,
        least: float = 0.2, original: bool = True,
    ) -> Batch:  # fmt: skip
        """Return each row `count` times, side by side: as it is, then under random changes.

        The changes of an image are those named: ``resized_crop`` keeps a share of at least `least`
        of its area, ``flip`` mirrors half of the images. Labels and all else are those of the row.
        Without the `original`, every view is a changed one. They follow from the key of the step.
        Separate memory batches stay: ask for their views in turn.
        """
        for name in changes:
            check_choice("changes", name, IMAGE_CHANGES)
        check_int("count", count, 1)
        if changes and batch.x.ndim != 4:
            raise bad("batch", "images [B, C, H, W], which can be changed", tuple(batch.x.shape))
        made = [batch.x] if original else []
        for number in range(count - len(made)):
            key = keys.fold(batch.key, "view", number) if number else batch.key
            made.append(change_images(batch.x, key, changes, least))
        own = [torch.stack([one] * count, 1).flatten(0, 1) for one in batch.per_row[1:]]
        x = torch.stack(made, 1).flatten(0, 1)  # side by side, so that padding stays behind
        values = {
            name: torch.stack([one] * count, 1).flatten(0, 1) for name, one in batch.values.items()
        }
        return Batch._make([x, *own, *batch.shared, batch.memory, values, batch.times])

    @property
    def weights(self) -> Tensor:
        """[P] the weights, differentiable like those of ``net(x)``: where inner steps begin.

        Terms of `vector` count as penalties instead, which ``Method.step`` does not see.
        """
        raise NotImplementedError

    def given(self, vector: Tensor | Views, *, moves_statistics: bool = False) -> Net:
        """Return the networks with other weights [P], which their outputs can be differentiated by.

        Weights by name, as in `params`, save the way over a vector.

        It is a `Net` like this one: call it, its parts or its `task`. It draws noise of its own and
        leaves running statistics alone, unless it trains in place of this one and so moves them. In
        a `Method.loss`, an inner step is

            slope = torch.func.grad(lambda v: net.given(v).task(batch))(net.weights)
            terms = {"task": net.given(net.weights - 0.1 * slope).task(batch.memory[0])}
        """
        self._calls += 1
        draws = self._key is not None and (self.networks.draws or self.networks.unmappable)
        key = keys.fold(self._key, "given", self._calls) if draws else self._key  # type: ignore[arg-type]
        buffers = {name: value.clone() for name, value in self.statistics().items()}
        net = FunctionalNet(
            self.networks, vector, buffers, key=key, real=self._real, training=self._in_training,
            lend=self.lend_modules, moved=self.set_statistics if moves_statistics else None,
        )  # fmt: skip
        net.main, net.phase = self.main, self.phase
        return net

    def set_statistics(self, buffers: Mapping[str, Tensor]) -> None:
        """Replace the current buffers."""
        raise NotImplementedError

    def lend_modules(self) -> AbstractContextManager[None]:
        """Return the context in which the modules compute with other weights and buffers."""
        return nullcontext()

    def frozen(self, snapshot: Snapshot) -> NetworkPart:
        """Return the networks with older weights, in eval mode, without gradient.

        Call it on inputs, or its parts: ``net.frozen(snapshot).generator.decode(z)``.
        ``net.frozen(snapshot)(x, want=names)`` also returns outputs of submodules as layers.
        """

        def evaluate(path: str, *args: Any, want: tuple[str, ...] = ()) -> Any:
            weights = {**self._snapshot_views(snapshot["vector"]), **snapshot["buffers"]}
            return self._evaluate(path or self.main, weights, args, want)

        def call(path: str, *args: Any, want: tuple[str, ...] = ()) -> Any:
            if self.teacher_cache is None or path or want:
                return evaluate(path, *args, want=want)
            return self.teacher_cache.get(snapshot, args, lambda: evaluate(path, *args))

        return NetworkPart(call, self.networks.eval)

    def _snapshot_views(self, vector: Tensor) -> Views:
        """Return the weights of a snapshot by name."""
        return self.networks.layout(vector)

    def _evaluate(
        self, path: str, weights: dict[str, Tensor], args: tuple[Any, ...], want: tuple[str, ...]
    ) -> Any:
        """Run a forward pass in eval mode, without gradient."""

        def forward(x: Any, *rest: Any) -> Any:
            return call_with_weights(
                self.networks.eval, weights, (path, x, *rest), self.networks.ties
            )

        if want:  # each rank computes all rows
            with torch.no_grad(), forward_context(None, None):
                with _capture_layers(self.networks.eval, want) as layers:
                    output = forward(*args)
                return output._replace(layers=layers)
        ranks = distributed.current_ranks() if self._trains and path == self.main else None
        with torch.no_grad(), forward_context(None, None):
            if ranks is not None and can_split(ranks, args):
                return run_split(ranks, lambda x, _: forward(x), args[0], None)
            return forward(*args)

    def compute_once(
        self, x: Tensor, compute: Callable[[Tensor], Tensor], name: str, *weights: Tensor
    ) -> Tensor:
        """Return ``compute(x)`` [B, F], once for each row of the data, without gradient.

        For features that depend on `weights` which stand still, and on nothing else but the frozen
        backbone and the `name`. Rows are found again by their inputs; where their values cannot be
        read, or for other rows, features are computed anew.
        """
        known = self.networks.row_features
        with torch.no_grad():
            if known is not None and can_be_read(x):
                found = known.find(x, (name, digest(*weights)), compute)
                if found is not None:
                    return found
            return compute(x)

    def _parameters_to_give(self) -> Mapping[str, Tensor]:
        """Return the current parameters that the modules in eval mode do not have by themselves."""
        return self.params

    def detached(self) -> NetworkPart:
        """Return the networks with the current weights, in eval mode, without gradient."""

        def call(path: str, *args: Any, want: tuple[str, ...] = ()) -> Any:
            weights = {**self._parameters_to_give(), **self.statistics()}
            return self._evaluate(path or self.main, weights, args, want)

        return NetworkPart(call, self.networks.eval)


class NetworkPart:
    """The networks, one of them, a part or a method, bound to some weights: call it, or its parts.

    With the weights of `Net`, ``part(x, w=batch.w)`` leaves rows of weight 0 out of batch
    statistics.
    """

    __slots__ = ("_path", "_run", "_target")

    def __init__(self, run: Callable[..., Any], target: Any, path: str = "") -> None:
        self._run, self._target, self._path = run, target, path  # "": all networks

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._run(self._path, *args, **options)

    def __getattr__(self, name: str) -> Any:
        if not self._path:
            return find_part(self._target, name, self._run)
        found = getattr(self._target, name)  # else an AttributeError that names the module
        if isinstance(found, Tensor):
            raise AttributeError(f"tensors are in net.params, net.params.{self._path}.{name}")
        return NetworkPart(self._run, found, f"{self._path}.{name}") if callable(found) else found

    def __repr__(self) -> str:
        return f"NetworkPart({self._path or 'all networks'!r})"


def find_part(bundle: torch.nn.Module, name: str, run: Callable[..., Any]) -> NetworkPart:
    """Return an additional network, or a part or method of the main network, by its name."""
    networks: dict[str, Any] = bundle._modules  # without a walk over all of them in every call
    if name in networks:
        return NetworkPart(run, networks[name], name)
    found = getattr(networks[MAIN], name, None)
    if callable(found):
        return NetworkPart(run, found, f"{MAIN}.{name}")
    if name == "at":
        raise AttributeError("net.at(path) is written as attributes: net.generator.decode(z)")
    known = [*networks, *(one for one, _ in networks[MAIN].named_children())]
    raise AttributeError(f"net has no {name!r}; its networks and their parts: {', '.join(known)}")


def _find_layer(skeleton: torch.nn.Module, name: str) -> torch.nn.Module:
    """Return a submodule by its name, without a walk over all of them in every step."""
    try:
        return find_module(skeleton, name)
    except KeyError:
        known = [one for one, _ in skeleton.named_modules() if one]
        raise unknown("want", name, known) from None


@contextmanager
def _capture_layers(
    skeleton: torch.nn.Module, want: tuple[str, ...]
) -> Iterator[dict[str, Tensor]]:
    """Capture the outputs of submodules by name, such as ``net.backbone``."""
    outputs: dict[str, Tensor] = {}
    modules = [_find_layer(skeleton, name) for name in want]
    hooks = [
        module.register_forward_hook(lambda _m, _i, out, name=name: outputs.__setitem__(name, out))
        for name, module in zip(want, modules, strict=True)
    ]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
    if unused := [name for name in want if name not in outputs]:
        raise bad("want", "submodules that the forward pass calls", unused[0])


@contextmanager
def _seed_torch(key: keys.Key | None) -> Iterator[None]:
    """Seed torch's global generator by a key for layers that draw from it, and restore it after."""
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
    """The networks with weights as arguments: can be mapped over runs; also used on the host."""

    def __init__(
        self,
        networks: Networks,
        vector: Tensor | Views,
        buffers: Mapping[str, Tensor],
        *,
        penalty: Tensor | None = None,
        key: keys.Key | None = None,
        real: tuple[Tensor, ...] = (),
        training: bool = True,
        partial: tuple[TrainableSlices, Tensor] | None = None,
        lend: Callable[[], AbstractContextManager[None]] = nullcontext,
        moved: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> None:
        """With `partial` (trainable slices, whole vector), `vector` is the trainable part only.

        `lend` is the context of every pass, for modules that another net has bound; `moved` is told
        the buffers after every pass.
        """
        super().__init__(networks, key, real)
        self._lend, self._moved = lend, moved
        self.buffers = dict(buffers)
        self._partial, self._penalty = partial, penalty
        self._part = None if isinstance(vector, Views) else vector
        if isinstance(vector, Views):
            self._params = vector
        elif partial is None:
            self._params = networks.layout(vector)
        else:
            self._params = partial[0].views(partial[1], vector)
        self._in_training = training
        self.touched = False  # whether the loss read `vector`, for a penalty

    @property
    def vector(self) -> Tensor:
        self.touched = True
        # with partial weights, made on demand: few losses need it
        whole = self._partial is not None or self._penalty is None
        return self.weights if whole else self._penalty  # type: ignore[return-value]

    @property
    def weights(self) -> Tensor:
        if self._part is None:
            layout = self.networks.layout
            return layout.flatten(self._params[name] for name in layout.shapes)
        if self._partial is None:
            return self._part
        trainable, whole = self._partial
        return trainable.fill_in(whole, self._part)

    @property
    def params(self) -> Views:
        return self._params

    def statistics(self) -> dict[str, Tensor]:
        return self.buffers

    def lend_modules(self) -> AbstractContextManager[None]:
        return self._lend()

    def _skeleton(self) -> torch.nn.Module:
        return self.networks.train if self._in_training else self.networks.eval

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        # a single dict, because functional_call writes updated buffers into it
        weights = {**self._params, **self.buffers}
        with self._lend():
            output = call_with_weights(self._skeleton(), weights, (path, *args), self.networks.ties)
        self.buffers = {k: weights[k] for k in self.buffers}
        if self._moved is not None and self.buffers:
            self._moved(self.buffers)
        return output

    def set_statistics(self, buffers: Mapping[str, Tensor]) -> None:
        self.buffers = dict(buffers)


class AnsweringNet(Net):
    """Networks that answer as their method does, for probes and detectors.

    ``net(x)`` is the method's answer, whose ``layers`` are those of the main network; weights,
    parts and further networks are those of `net`.
    """

    def __init__(self, net: Net, answer: Callable[[Net, Tensor], Output]) -> None:
        super().__init__(net.networks, None)
        self._net, self._answer = net, answer

    def __call__(self, x: Tensor, w: Tensor | None = None, want: tuple[str, ...] = ()) -> Output:
        layers = self._net(x, want=want).layers if want else {}
        return self._answer(self._net, x)._replace(layers=layers)

    @property
    def vector(self) -> Tensor:
        return self._net.vector

    @property
    def weights(self) -> Tensor:
        return self._net.weights

    @property
    def params(self) -> Views:
        return self._net.params

    def given(self, vector: Tensor | Views, *, moves_statistics: bool = False) -> Net:
        return self._net.given(vector, moves_statistics=moves_statistics)

    def statistics(self) -> dict[str, Tensor]:
        return self._net.statistics()

    def _skeleton(self) -> torch.nn.Module:
        return self._net._skeleton()

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        return self._net._run(path, args)


# -- caching teacher outputs -----------------------------------------------------------------------


class TeacherCache:
    """Outputs of networks with older weights for a batch that is the same in every step.

    A loss is pure and `state` does not change, so it calls the same networks in every step, in the
    same order. If no outputs are `known` yet, they are computed and collected in `made`.

    Examples
    --------
    >>> import torch
    >>> x, state = torch.ones(2), {"teacher": {"vector": torch.zeros(3)}}
    >>> first = TeacherCache(x, state)
    >>> first.get(state["teacher"], (x,), lambda: "made"), first.made
    ('made', ['made'])
    >>> again = TeacherCache(x, state, known=("cached",))
    >>> again.get(state["teacher"], (x,), lambda: "made")
    'cached'
    >>> again.get(state["teacher"], (x + 1,), lambda: "other inputs")
    'other inputs'
    """

    def __init__(self, x: Tensor, state: Mapping[str, Any], known: tuple[Any, ...] = ()) -> None:
        self.made: list[Any] = []
        self._x, self._snapshots, self._known = x, list(_iterate_dicts(state)), iter(known)
        self._knows = bool(known)

    def get(self, snapshot: Any, args: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return the output of a snapshot for `args`; cached for the inputs of the batch."""
        same = len(args) == 1 and args[0] is self._x
        if not same or all(snapshot is not known for known in self._snapshots):
            return make()
        if self._knows:
            return next(self._known)
        self.made.append(make())
        return self.made[-1]


def _iterate_dicts(tree: Any) -> Iterator[Any]:
    """Iterate over all dicts of a tree."""
    if isinstance(tree, Mapping):
        yield tree
    for part in tree.values() if isinstance(tree, Mapping) else tree:
        if isinstance(part, Mapping | tuple):
            yield from _iterate_dicts(part)


# -- splitting a forward pass over ranks -----------------------------------------------------------
# A loss may be any function of a network's outputs (means with their own denominators, margins,
# projections), so it is the forward pass that is split, not the loss: each rank computes its rows,
# all ranks gather all outputs, and each computes the whole loss. In the backward pass a rank
# follows its own rows only; the gradients of all ranks add up to that of a single process.

ForwardPass = Callable[[Tensor, Tensor | None], Any]  # from inputs and row weights to outputs


def run_split(ranks: Ranks, forward: ForwardPass, x: Tensor, w: Tensor | None) -> Any:
    """Return outputs for all rows of `x`, each row computed by one rank."""
    rows, where = len(x), ranks.row_slice(len(x))
    own = _Scatter.apply(x, ranks, where)  # type: ignore[no-untyped-call]
    with share_context(Share(ranks, where.start, where.stop - where.start, rows)):
        outputs = forward(own, None if w is None else w[where])
    return gather_outputs(ranks, outputs, where, rows)


def gather_outputs(ranks: Ranks, outputs: Any, where: slice, rows: int) -> Any:
    """Gather the outputs of all ranks, given those of this rank."""
    return tree_map(lambda leaf: _Gather.apply(leaf, ranks, where, rows), outputs)  # type: ignore[no-untyped-call]


def can_split(ranks: Ranks | None, args: tuple[Any, ...]) -> bool:
    """Whether a pass can be split: a single batch, with at least one row for every rank."""
    return (
        ranks is not None
        and len(args) == 1
        and isinstance(args[0], Tensor)
        and args[0].ndim > 0
        and len(args[0]) >= ranks.world
    )


def run_repeated(ranks: Ranks, forward: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a pass as a whole on every rank; its gradient is divided between them."""
    # arguments may be trees of parameters, such as insertions
    whole = tree_map(lambda leaf: scale_gradient(leaf, float(ranks.world)), args)
    return tree_map(lambda leaf: scale_gradient(leaf, 1 / ranks.world), forward(*whole))


def scale_gradient(value: Any, factor: float) -> Any:
    """Return the same value with its gradient multiplied by a factor."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    return _ScaleGradient.apply(value, factor)  # type: ignore[no-untyped-call]


class _Scatter(torch.autograd.Function):
    """Select one rank's rows; the gradient of all rows is gathered from all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, where: slice) -> Tensor:
        ctx.ranks, ctx.where, ctx.rows = ranks, where, len(x)
        return x[where].clone() if x.requires_grad else x[where]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.ranks.gather_rows(grad, ctx.where, ctx.rows), None, None


class _Gather(torch.autograd.Function):
    """Gather the rows of all ranks; the gradient of a rank is that of its own rows."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: Ranks, where: slice, rows: int) -> Tensor:
        ctx.where = where
        return ranks.gather_rows(own, where, rows)

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
