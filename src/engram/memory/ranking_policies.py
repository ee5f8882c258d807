"""Policies that rank rows for a memory (random, stratified, entropy, herding, plane), reservoir
sampling, and the part of a learner that a policy may use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.errors import bad, check_choice, unknown
from engram.memory.exemplars import Exemplars


class Outputs(Protocol):
    """Outputs of the network for some rows."""

    @property
    def features(self) -> Tensor:
        """[n, d]"""
        ...

    @property
    def logits(self) -> Tensor:
        """[n, C]"""
        ...


class PolicyStream(Protocol):
    """The part of a stream that memories read."""

    @property
    def labels(self) -> str:
        """``single``, or ``set`` if rows may have several labels."""
        ...


class PolicyLearner(Protocol):
    """The part of a learner that memories read."""

    @property
    def stream(self) -> PolicyStream: ...
    @property
    def seed(self) -> int: ...
    @property
    def stage(self) -> int: ...
    @property
    def exemplars(self) -> Exemplars: ...
    @property
    def opened(self) -> Tensor:
        """[C] the stage that opened each output column, -1 = not yet."""
        ...

    def labels(self, rows: Tensor) -> Tensor:
        """[n, L] labels visible in the current task as output columns, -1 pads, on the CPU."""
        ...

    def answers(self, rows: Tensor) -> Outputs:
        """Features and logits that the method answers, in eval mode, on the CPU."""
        ...

    def class_weights(self) -> Tensor:
        """[C, d] rows of the last layer, on the CPU."""
        ...


Ranking = Callable[[PolicyLearner, Tensor, int, int], Tensor]


@runtime_checkable
class Policy(Protocol):
    """Protocol of a policy: it ranks the rows of one group, best first.

    `column` is the output column of the group, or -1 if the group is a whole task. At least
    ``min(count, len(rows))`` positions in `rows` must be returned; more are cut off. The first
    positions of a longer ranking must equal those of a shorter one.
    """

    def rank(self, learner: PolicyLearner, rows: Tensor, column: int, count: int) -> Tensor:
        """Return positions in `rows`, best first."""
        ...


# -- groups that share a quota: one class of a task, or a whole task -------------------------------


class RowGroup(NamedTuple):
    """Rows that compete for the same quota."""

    column: int  # output column, -1 for a whole task
    rows: Tensor  # [n]


def first_label(labels: Tensor) -> Tensor:
    """Return the first label [n] of each row [n, L] that is not padding, -1 if there is none.

    Examples
    --------
    >>> first_label(torch.tensor([[-1, 4], [2, 3], [-1, -1]])).tolist()
    [4, 2, -1]
    """
    if labels.shape[-1] == 1:
        return labels[:, 0]
    first = (labels >= 0).to(torch.uint8).argmax(-1, keepdim=True)
    return labels.gather(-1, first)[:, 0]


def group_by_class(rows: Tensor, labels: Tensor) -> list[RowGroup]:
    """Make one group per visible class, by column; a row with two labels is in two groups."""
    flat = labels.reshape(-1)
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat + 1).tolist()  # the first entry counts the padding
    spread = rows[order // labels.shape[-1]].split(counts)
    pairs = zip(counts[1:], spread[1:], strict=True)
    return [RowGroup(column, part) for column, (count, part) in enumerate(pairs) if count]


def select_items(learner: PolicyLearner, group: RowGroup, order: Tensor) -> Exemplars:
    """Return the rows of a group at the positions `order` as exemplars of the current task."""
    rows = group.rows[order]
    stages = torch.full_like(rows, learner.stage)
    ranks = torch.arange(len(rows))
    if group.column >= 0:
        columns = torch.full_like(rows, group.column)
    else:
        columns = first_label(learner.labels(rows)) if len(rows) else rows
    return Exemplars(rows, stages, columns, ranks)


def check_returned_order(ranking: Ranking) -> Ranking:
    """Wrap a user's ranking so that what it returns is checked."""
    name = getattr(ranking, "__qualname__", type(ranking).__name__)

    def rank(learner: PolicyLearner, rows: Tensor, column: int, count: int) -> Tensor:
        order = torch.as_tensor(ranking(learner, rows, column, count)).cpu()
        if order.dim() != 1 or order.is_floating_point() or order.dtype == torch.bool:
            raise bad(f"policy {name}", "a vector of whole numbers, best row first", order)
        order = order[:count].long()
        inside = bool(((order >= 0) & (order < len(rows))).all())
        if len(order) < count or not inside or len(order.unique()) < len(order):
            expected = f"{count} different places below {len(rows)} (output column {column})"
            raise bad(f"policy {name}", expected, order.tolist())
        return order

    return rank


# -- random: uniform sampling without replacement --------------------------------------------------


def group_key(learner: PolicyLearner, column: int) -> keys.Key:
    """Return the key of all draws for a group: by output column, independent of class ids."""
    return keys.fold(learner.seed, "memory", learner.stage, column)


def random_order(key: keys.Key, n: int) -> Tensor:
    """Draw a uniform permutation of 0..n-1 as a function of the key.

    Examples
    --------
    >>> sorted(random_order(3, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    return keys.bits(key, n).argsort(stable=True)


def random_orders(drawn_by: Sequence[keys.Key], sizes: Sequence[int]) -> list[Tensor]:
    """Call `random_order` for several groups with a single draw, which is faster.

    Examples
    --------
    >>> [o.tolist() for o in random_orders([3, 4], [5, 2])] == [
    ...     random_order(3, 5).tolist(),
    ...     random_order(4, 2).tolist(),
    ... ]
    True
    """
    longest = max(sizes, default=0)
    if len(sizes) == 1 or longest * len(sizes) > 4 * sum(sizes):  # one group dwarfs the others
        return [random_order(key, n) for key, n in zip(drawn_by, sizes, strict=True)]
    drawn = keys.bits(torch.as_tensor(drawn_by, dtype=torch.long), longest)  # [G, longest]
    return [part[:n].argsort(stable=True) for part, n in zip(drawn, sizes, strict=True)]


@dataclass(frozen=True)
class Random:
    """Every row of the group is equally likely."""

    def rank(self, learner: PolicyLearner, rows: Tensor, column: int, count: int) -> Tensor:
        return random_order(group_key(learner, column), len(rows))[:count]


# -- weighted sampling without replacement ---------------------------------------------------------

_LAST = 1e4  # more than any log weight of a double plus any Gumbel number drawn here


def weighted_order(key: keys.Key, weights: Tensor) -> Tensor:
    """Draw all indices without replacement, with chances proportional to the weights.

    Sorting by ``log w + Gumbel noise`` is equivalent to drawing one index after the other with
    chances proportional to the remaining weights (exponential keys), and does not lose tiny weights
    to rounding. Indices of weight 0 come last, in random order.

    Parameters
    ----------
    weights
        [n] of any scale, not negative.

    Examples
    --------
    >>> order = weighted_order(5, torch.tensor([0.0, 1.0, 1e-30]))
    >>> order.tolist()
    [1, 2, 0]
    """
    weights = weights.double()
    if bool((weights < 0).any()) or not bool(weights.isfinite().all()):
        raise bad("weights", "finite numbers of at least 0", weights.tolist())
    drawn = keys.uniform(key, len(weights)).clamp(min=2.0**-53)  # 0 has no logarithm
    noise = -(-drawn.log()).log()
    score = torch.where(weights > 0, weights.log() + noise, noise - _LAST)
    return score.argsort(descending=True, stable=True)


# -- stratified: uniform sampling within each class ------------------------------------------------


@dataclass(frozen=True)
class Stratified:
    """In any prefix of the ranking each class of the group has its share, up to rounding.

    Differs from `Random` if a group is a whole task: uniform sampling may miss a rare class.
    """

    def rank(self, learner: PolicyLearner, rows: Tensor, column: int, count: int) -> Tensor:
        places = torch.arange(len(rows))
        groups = group_by_class(places, first_label(learner.labels(rows))[:, None])
        keys = [group_key(learner, group.column) for group in groups]
        orders = random_orders(keys, [len(group.rows) for group in groups])
        chosen = [group.rows[order] for group, order in zip(groups, orders, strict=True)]
        # the i-th of n rows is ranked by the fraction (i + 1/2) / n of its class
        shares = [(torch.arange(len(one)) + 0.5) / len(one) for one in chosen]
        if not chosen:
            return places
        return torch.cat(chosen)[torch.cat(shares).argsort(stable=True)][:count]


# -- entropy: prefer samples that the network is uncertain about -----------------------------------

_ENTROPY_FLOOR = 1e-32  # samples of entropy 0 are drawn last


def entropy(probabilities: Tensor) -> Tensor:
    """Compute the Shannon entropy [n] in nats of the rows [n, C].

    Examples
    --------
    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [0.6931, 0.0]
    """
    terms: Tensor = torch.special.entr(probabilities.double())  # 0 log 0 = 0
    return terms.sum(-1)


def entropy_weights(probabilities: Tensor) -> Tensor:
    """Compute sampling weights [n] proportional to the entropy.

    Examples
    --------
    >>> entropy_weights(torch.tensor([[0.5, 0.5], [0.9, 0.1]])).tolist()
    [0.6807, 0.3193]
    """
    return _chances(entropy(probabilities))


def label_entropy_weights(logits: Tensor) -> Tensor:
    """Compute `entropy_weights` of rows with sets of labels: a binary prediction per column.

    Examples
    --------
    >>> label_entropy_weights(torch.tensor([[0.0, 0.0], [0.0, 99.0]])).tolist()
    [0.6667, 0.3333]
    """
    either = torch.stack([logits, -logits]).double().sigmoid()  # [2, n, C] of yes and of no
    return _chances(entropy(either.nan_to_num(0.0)).sum(0))


def _chances(entropies: Tensor) -> Tensor:
    weights = entropies + _ENTROPY_FLOOR
    return weights / weights.sum()


@dataclass(frozen=True)
class Entropy:
    """Draw with chances proportional to the entropy over the classes seen so far.

    The entropy of the softmax or, if rows have sets of labels, of a binary prediction per class.
    """

    def rank(self, learner: PolicyLearner, rows: Tensor, column: int, count: int) -> Tensor:
        seen = learner.opened.cpu() >= 0
        logits = learner.answers(rows).logits[:, seen].double()
        if learner.stream.labels == "set":
            weights = label_entropy_weights(logits)
        else:
            # samples of a diverged network (NaN) count as certain
            weights = entropy_weights(logits.softmax(-1).nan_to_num(0.0))
        return weighted_order(group_key(learner, column), weights)[:count]


# -- herding: the running mean of features follows the class mean ----------------------------------

HERDING_RULES = ("distance", "inner_product")
_TIE = 1e-12  # scores closer than this, relative to the features' size, are ties


def herding_order(
    features: Tensor,
    count: int,
    *,
    normalize: bool = True,
    dedupe: bool = True,
    rule: str = "distance",
) -> Tensor:
    """Order rows greedily: the k-th x minimises ``|mu - (x + sum of earlier picks) / k|``.

    Ties go to the lowest index. The first m of a longer order are the order of length m.

    Parameters
    ----------
    features
        [n, d]
    count
        Length of the order; at most n unless indices may repeat.
    normalize
        Bring every feature vector to length 1 first.
    dedupe
        Never choose an index twice.
    rule
        ``distance`` as above; ``inner_product`` leaves the length of x out of the comparison, as
        the first public code did. They agree for vectors of equal length.

    Examples
    --------
    >>> herding_order(torch.tensor([[1, 0], [0.9, 0.1], [0, 1], [0.5, 0.5], [-0.2, 1]]), 3).tolist()
    [3, 2, 0]
    """
    check_choice("rule", rule, HERDING_RULES)
    x = features.double()  # [n, d]
    if normalize:
        x = F.normalize(x, dim=-1)
    lengths = x.square().sum(-1)  # [n]
    # |mu - (x + s)/k|^2 k^2 = |x|^2 - 2 x.(k mu - s) + terms that do not depend on x
    own = lengths if rule == "distance" else torch.zeros_like(lengths)
    mean = x.mean(0)
    total = torch.zeros_like(mean)
    free = torch.ones(len(x), dtype=torch.bool)
    slack = _TIE * lengths.nan_to_num(0.0).sum().item() / max(len(x), 1)
    picks = min(count, len(x)) if dedupe or len(x) == 0 else count
    order: list[int] = []
    for k in range(1, picks + 1):
        score = own - 2.0 * (x @ (k * mean - total))
        best = find_lowest(score, free, slack * k)
        order.append(best)
        total = total + x[best]
        free[best] = not dedupe
    return torch.tensor(order, dtype=torch.long)


def find_lowest(score: Tensor, free: Tensor, slack: float) -> int:
    """Return the first free index whose score is within `slack` of the lowest one.

    Scores of equal rows may differ in the last bit, because a matrix product sums in blocks. NaN
    (of a diverged network) counts as the highest score.
    """
    score = score.nan_to_num(torch.finfo(score.dtype).max)
    near = (score <= score[free].min() + slack) & free
    return int(near.to(torch.uint8).argmax())


@dataclass(frozen=True)
class Herding:
    """Rows whose running feature mean follows the class mean: see `herding_order`."""

    normalize: bool = True
    dedupe: bool = True
    rule: str = "distance"

    def __post_init__(self) -> None:
        check_choice("rule", self.rule, HERDING_RULES)

    def rank(self, learner: PolicyLearner, rows: Tensor, column: int, count: int) -> Tensor:
        return herding_order(
            learner.answers(rows).features,
            count,
            normalize=self.normalize,
            dedupe=self.dedupe,
            rule=self.rule,
        )


# -- plane: prefer samples near the decision plane of their class ----------------------------------

_DISTANCE_FLOOR = 1e-8

# 1/d is undefined for d <= 0, so distances are made positive first
PLANE_TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs_eps": lambda d: d.abs().clamp(min=_DISTANCE_FLOOR),
    "softplus": lambda d: F.softplus(d).clamp(min=_DISTANCE_FLOOR),
}


def plane_weights(distances: Tensor, transform: str = "abs_eps") -> Tensor:
    """Compute sampling weights [n] inversely proportional to the distance.

    Parameters
    ----------
    transform
        ``abs_eps``: 1 / max(abs(d), 1e-8); ``softplus``: 1 / log(1 + exp(d)).

    Examples
    --------
    >>> import torch
    >>> plane_weights(torch.tensor([2.0, 4.0, -4.0])).tolist()
    [0.5, 0.25, 0.25]
    """
    positive = PLANE_TRANSFORMS[check_choice("transform", transform, PLANE_TRANSFORMS)]
    weights = 1.0 / positive(distances.double())
    return weights / weights.sum()


@dataclass(frozen=True)
class Plane:
    """Draw with chances inverse to the product of features and the class's last-layer weights."""

    transform: str = "abs_eps"

    def __post_init__(self) -> None:
        check_choice("transform", self.transform, PLANE_TRANSFORMS)

    def rank(self, learner: PolicyLearner, rows: Tensor, column: int, count: int) -> Tensor:
        features = learner.answers(rows).features.double()  # [n, d]
        weights = learner.class_weights().double()  # [C, d]
        if column >= 0:
            distances = features @ weights[column]
        else:  # a whole task: the class of a row is its first label
            own = first_label(learner.labels(rows))
            distances = (features * weights[own]).sum(-1)
        distances = distances.nan_to_num(1e30)  # a diverged network: last
        chances = plane_weights(distances, self.transform)
        return weighted_order(group_key(learner, column), chances)[:count]


# -- reservoir: a uniform sample of all rows seen so far -------------------------------------------


def draw_slots(key: keys.Key, seen: int, count: int) -> Tensor:
    """Draw [count] integers, in 0..n-1 for the n-th row seen so far (n = seen + 1, ...).

    Examples
    --------
    >>> draw_slots(1, 0, 3)[0].item()  # the only slot of the first row
    0
    """
    place = torch.arange(seen, seen + count)
    return keys.randint(keys.fold(key, place), place + 1)


def fill_slots(slots: Tensor, seen: int, size: int) -> Tensor:
    """Return which of n new rows ends up in each slot [min(size, seen + n)], -1 = the old row.

    The n-th row seen takes slot n-1 while the reservoir fills up, and later the slot drawn for it,
    if that is below `size`. The last row to enter a slot stays.

    Parameters
    ----------
    slots
        [n] draws of `draw_slots`; those of the first `size` rows are not used.

    Examples
    --------
    >>> fill_slots(torch.tensor([0, 0, 1, 3]), seen=0, size=2).tolist()  # a, b, c, d: a and c stay
    [0, 2]
    """
    arrival = torch.arange(len(slots))
    place = arrival + seen
    target = torch.where(place < size, place, slots)
    inside = target < size
    holder = torch.full((min(size, seen + len(slots)),), -1, dtype=torch.long)
    return holder.scatter_reduce_(0, target[inside], arrival[inside], "amax")


def reservoir(learner: PolicyLearner, rows: Tensor, columns: Tensor, size: int) -> Exemplars:
    """Show `rows` to the reservoir in random order, and return it afterwards.

    Parameters
    ----------
    columns
        [n] first label of each row.
    """
    old = learner.exemplars
    if len(old) != min(size, old.seen):
        expected = f"{min(size, old.seen)} of {old.seen} rows, as a reservoir of {size} keeps them"
        raise bad("exemplars", expected, len(old))
    key = keys.fold(learner.seed, "memory", "reservoir")
    visit = random_order(keys.fold(key, "visit", learner.stage, old.seen), len(rows))
    holder = fill_slots(draw_slots(key, old.seen, len(rows)), old.seen, size)
    fresh = holder >= 0
    source = visit[holder[fresh]]
    rows, columns = rows[source], columns[source]
    stages = torch.full_like(rows, learner.stage)
    return Exemplars(
        _replace_where(fresh, old.rows, rows),
        _replace_where(fresh, old.stages, stages),
        _replace_where(fresh, old.columns, columns),
        torch.arange(len(holder)),
        old.seen + len(visit),
    )


def _replace_where(fresh: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return the old values with new ones where `fresh`."""
    values = before.new_full(fresh.shape, -1)
    values[: len(before)] = before
    values[fresh] = after
    return values


# -- policies by name ------------------------------------------------------------------------------

RANK_ARGUMENTS = ("learner", "rows", "column", "count")  # arguments of a ranking
_SUMMARIES = {
    "random": "uniform sampling without replacement",
    "stratified": "uniform sampling within each class of a task, in equal shares",
    "reservoir": "uniform sample of all rows seen so far, not balanced by class (total only)",
    "admit": "the method admits rows one by one while it trains (total only)",
    "herding": "herding: rows whose running feature mean best follows the class mean",
    "entropy": "sampling weighted by the entropy of the prediction over the classes seen",
    "plane": "sampling weighted by the inverse distance to the decision plane of the class",
}


def policies() -> dict[str, str]:
    """Return the names of the policies with a one-line description of each.

    Examples
    --------
    >>> sorted(policies())
    ['admit', 'entropy', 'herding', 'plane', 'random', 'reservoir', 'stratified']
    """
    return dict(_SUMMARIES)


def check_policy(policy: str | Policy | Ranking) -> None:
    """Raise unless the argument is a known policy or can rank rows."""
    if isinstance(policy, str):
        check_choice("policy", policy, _SUMMARIES)
    elif isinstance(policy, type) or not (isinstance(policy, Policy) or callable(policy)):
        wanted = f"one of {', '.join(_SUMMARIES)}, or an object with a method rank"
        raise bad("policy", wanted, policy)
    else:
        _check_arguments(policy.rank if isinstance(policy, Policy) else policy)


def _check_arguments(rank: Ranking) -> None:
    """Raise for a user's ranking that cannot be called with the arguments of a memory."""
    taken = inspect.signature(rank)
    try:
        taken.bind(*RANK_ARGUMENTS)
    except TypeError:
        wanted = f"a ranking that takes ({', '.join(RANK_ARGUMENTS)})"
        raise bad("policy", wanted, f"{policy_name(rank)}{taken}") from None


def policy_name(policy: str | Policy | Ranking) -> str:
    """Return the name of a policy for tables."""
    if isinstance(policy, str):
        return policy
    return str(getattr(policy, "__name__", type(policy).__name__))


def make_ranking(
    policy: str | Policy | Ranking, *, normalize: bool, dedupe: bool, rule: str, pd_transform: str
) -> Ranking:
    """Return the ranking function of a policy; a user's policy is checked when it is called."""
    if policy == "random":
        return Random().rank
    if policy == "stratified":
        return Stratified().rank
    if policy == "herding":
        return Herding(normalize=normalize, dedupe=dedupe, rule=rule).rank
    if policy == "entropy":
        return Entropy().rank
    if policy == "plane":
        return Plane(transform=pd_transform).rank
    if isinstance(policy, str):
        raise unknown("policy", policy, _SUMMARIES)
    return check_returned_order(policy.rank if isinstance(policy, Policy) else policy)
