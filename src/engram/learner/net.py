"""Networks with one run's weights: what a method's loss calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engram import keys, parallel
from engram.errors import bad, unknown
from engram.learner.batch import Batch
from engram.learner.kept_answers import KeptAnswers
from engram.learner.layout import Networks
from engram.learner.moving import Moving
from engram.learner.split import gathered, repeated, split, splits
from engram.models.context import forward_context
from engram.models.functional import call
from engram.models.output import Output

ANSWERS = 3  # how many a net remembers: a batch of the task, and two draws from the memory
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
    kept: KeptAnswers | None = None  # where a batch stays the same from step to step

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
            with forward_context(weights, key), _seeded(key if own_noise else None):
                return self._run(path, args)

        return answer if parallel.current() is None else partial(self._shared, path, w)

    def _shared(self, path: str, w: Tensor | None, *args: Any) -> Any:
        """The answer of `at` where several ranks compute it."""
        ranks = parallel.current()
        if ranks is None or not self._trains:
            with parallel.apart():
                return self.at(path, w)(*args)
        weights = None if w is None or self.unpadded(w) else w
        self._calls += 1
        key: keys.Key | None = None
        if self._key is not None and self.networks.draws:
            key = keys.fold(self._key, "forward", self._calls)
        if path == self.main and splits(ranks, args):

            def forward(x: Tensor, w: Tensor | None) -> Any:
                with forward_context(w, key):
                    return self._run(path, (x,))

            return split(ranks, forward, args[0], weights)
        with forward_context(weights, key):
            return repeated(ranks, lambda *whole: self._run(path, whole), args)

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
        self._answers = [(x, output), *self._answers[: ANSWERS - 1]]
        return output

    def _with_layers(self, x: Tensor, w: Tensor | None, want: tuple[str, ...]) -> Output:
        with _layers(self._skeleton(), want) as got:
            output: Output = self.at(self.main, w)(x)
        ranks = parallel.current()
        if self._trains and ranks is not None and splits(ranks, (x,)):
            got = gathered(ranks, got, ranks.share(len(x)), len(x))
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
            return call(self.networks.eval, weights, (path, x, *rest), self.networks.ties)

        if want:  # each rank makes the whole of it
            with torch.no_grad(), forward_context(None, None):
                with _layers(self.networks.eval, want) as got:
                    answer = forward(*args)
                return answer._replace(layers=got)
        ranks = parallel.current() if self._trains and path == self.main else None
        with torch.no_grad(), forward_context(None, None):
            if ranks is not None and splits(ranks, args):
                return split(ranks, lambda x, _: forward(x), args[0], None)
            return forward(*args)

    def still(self, path: str | None = None) -> Callable[..., Any]:
        """The networks with the present weights, in eval mode, without gradient: as `frozen`."""

        def answer(*args: Any, want: tuple[str, ...] = ()) -> Any:
            weights = {**self.params, **self.statistics()}
            return self._judged(path or self.main, weights, args, want)

        return answer


@contextmanager
def _layers(skeleton: torch.nn.Module, want: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
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
def _seeded(key: keys.Key | None) -> Iterator[None]:
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
        still: tuple[Moving, Tensor] | None = None,
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
        answer = call(self._skeleton(), weights, (path, *args), self.networks.ties)
        self.buffers = {k: weights[k] for k in self.buffers}
        return answer
