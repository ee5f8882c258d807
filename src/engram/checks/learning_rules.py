"""Rules of learning: tasks of one class, known tasks, known classes in other domains, refined
labels, label sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from engram import keys, metrics
from engram.checks.check_report import BrokenRule, DoesNotApply, require
from engram.checks.equality_rules import require_lockstep_is_alone
from engram.checks.failure_causes import explain_no_learning
from engram.checks.toy_runs import (
    EXACT,
    ORDERS,
    SIZES,
    TESTS,
    StageCopy,
    Trained,
    accuracies,
    all_finite,
    change_parts,
    copy_stage,
    enter_task,
    make_clouds,
    make_runs,
    make_single_class_stream,
    make_streams,
    sample_shape,
    scale_floats,
    share_training,
    shrink_settings,
    spy_on_host_verbs,
    train_runs,
)
from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.engine.evaluation import score_test_items, test_items
from engram.engine.run_definition import Run
from engram.errors import BadArgument, plural
from engram.learner.learner import RunLearner
from engram.learner.parameter_layout import MAIN
from engram.learner.tensor_tree import leaves, nbytes
from engram.methods.finetune import Finetune
from engram.methods.method import DECISIONS, HostVerb, Method
from engram.models.layers import BatchNorm
from engram.streams import (
    Stream,
    class_incremental,
    domain_incremental,
    hierarchical,
    task_incremental,
)
from engram.streams.stream import Task

LEARNS = replace(EXACT, optimizer="adam", lr=0.01, epochs=8)
# share of rows whose answers follow the labels; half by chance, none where labels do not matter
ENOUGH_HEEDED = 0.8
ENOUGH_ACCURACY = 0.6  # chance is about 0.3: one of two, four, six classes


def train_unless_refused(runs: Sequence[Run]) -> Trained:
    """Train runs of streams that a method may refuse, which it does before any training."""
    found: Trained = {}

    def train() -> Trained:
        for stage in Engine(runs, device="cpu", together=False).stages():
            found[stage.run, stage.stage] = copy_stage(stage)
        return found

    try:
        return share_training(runs, train)
    except BadArgument as error:
        require(not found, f"it refuses the stream after {plural(len(found), 'task')} ({error})")
        raise DoesNotApply(f"it refuses such streams ({error})") from error


def _train_finite(method: Method, stream: Stream) -> None:
    trained = train_unless_refused(make_runs(shrink_settings(method), [stream]))
    for (_, stage), after in trained.items():
        sound = after.diverged < 0 and all_finite((after.tensors, torch.as_tensor(after.scores)))
        alone = int((stream.opening <= stage).sum()) == 1
        hint = ": a softmax over one class has loss and gradient 0" if alone else ""
        require(
            sound,
            f"numbers are not finite after task {stage}{hint}; divide by nothing that may be 0 "
            "where a task or a past has one class only",
        )
    require(max(trained)[1] == len(stream) - 1, "the run ended early")


def check_single_class_tasks(method: Method) -> None:
    """Tasks of one class each stay finite."""
    _train_finite(method, make_single_class_stream())


def check_one_class_first(method: Method) -> None:
    """A first task of one class works, with tasks of unequal numbers of classes after it."""
    _train_finite(method, class_incremental(make_clouds(), classes_per_task=[1, 3, 2]))


def check_task_incremental(method: Method) -> None:
    """With known tasks (one head each) the method runs and learns."""
    stream = task_incremental(make_clouds(), order=list(ORDERS[1]))
    mine = shrink_settings(method, LEARNS)
    trained = train_unless_refused(make_runs(mine, [stream], training=LEARNS))
    found = _mean_accuracy(trained)
    if found <= ENOUGH_ACCURACY + 0.1 and not _answers_lag(mine, trained, ENOUGH_ACCURACY + 0.1):
        raise BrokenRule(f"learns {found:.2f} of each new task where chance is 0.5")


def check_beats_chance(method: Method) -> None:
    """Right after its training, accuracy on a task is far above chance."""
    mine = shrink_settings(method, LEARNS)
    trained = train_runs(make_runs(mine, make_streams()[:1], training=LEARNS))
    found = _mean_accuracy(trained)
    if found <= ENOUGH_ACCURACY and not _answers_lag(mine, trained, ENOUGH_ACCURACY):
        why = explain_no_learning(method, trained, LEARNS)
        raise BrokenRule(
            f"mean accuracy of the task just learnt is {found:.2f}, guessing gives 0.31: {why}"
        )


def _mean_accuracy(trained: Trained) -> float:
    """Mean over tasks of the accuracy right after their training."""
    return sum(accuracies(after)[-1] for after in trained.values()) / len(trained)


def _answers_lag(method: Method, trained: Trained, enough: float) -> bool:
    """Whether tasks are learnt, and answers follow slowly: those of averaged weights, say.

    Then the networks that train know every task, and labels move the answers towards themselves.
    """
    if not method.implements("answer"):
        return False
    stream = next(iter(trained.values())).stage.learner.stream
    runs = make_runs(method, [stream], training=LEARNS)
    found = []
    for stage in Engine(runs, device="cpu").stages():
        (logits,) = score_test_items([stage.learner], [Finetune()])
        found.append(accuracies(copy_stage(stage)._replace(scores=logits))[-1])
    if sum(found) / len(found) <= enough:
        return False
    heeded = [heed_labels(method, stream, stage) for stage in range(len(stream))]
    return sum(heeded) / len(heeded) > ENOUGH_HEEDED


def heed_labels(method: Method, stream: Stream, stage: int) -> float:
    """How often the labels of a task move the answers to its test rows towards their classes.

    The task is trained with its labels, and again with each class called by the name of the next.
    Of two answers to a row, the first should favour the row's class over the other name.
    """
    shown = torch.tensor(stream.tasks[stage].shown)
    renamed = torch.arange(stream.data.n_classes)
    renamed[shown] = shown.roll(1)
    y, mine = stream.data.y.clone(), stream.tasks[stage].train
    y[mine] = renamed[y[mine]]
    other = replace(stream, data=replace(stream.data, y=y))
    rows, stages = test_items(stream, slice(0, stage + 1))
    y = stream.data.y[rows[stages == stage], 0]
    own, false = stream.position[y], stream.position[renamed[y]]
    towards = []
    for one in (stream, other):
        runs = make_runs(method, [one], training=LEARNS)
        *_, last = Engine(runs, device="cpu").stages(until=[stage + 1])
        after = torch.as_tensor(last.scores)[: len(rows)][stages == stage]
        place = torch.arange(len(after))
        towards.append(after[place, own] - after[place, false])
    return float((towards[0] > towards[1]).double().mean())


def check_state_is_a_tree_of_tensors(method: Method) -> None:
    """State is dicts and tuples of tensors; it does not grow with the number of tasks."""
    trained = train_runs(make_runs(shrink_settings(method), [make_single_class_stream()]))
    sizes = []
    for after in trained.values():
        state = after.state
        require(isinstance(state, dict), f"learner.state must be a dict, it is {type(state)}")
        for leaf in leaves(state):
            require(
                isinstance(leaf, torch.Tensor),
                f"state holds {type(leaf).__name__}; only tensors can be stacked, saved and mapped",
            )
        sizes.append(nbytes(state))
    grown = sizes[-1] - sizes[1]
    require(
        method.grows or grown <= 0,
        f"state grows by {grown} bytes from the "
        "second task to the last: keep sums over tasks, or declare grows = True",
    )


def check_unopened_columns_stand_still(method: Method) -> None:
    """Under weight decay and momentum, columns of unseen classes stay bitwise the same."""
    training = replace(EXACT, weight_decay=0.1, optim_reset=False)
    for together in (False, True):
        runs = make_runs(shrink_settings(method), make_streams()[:2], training=training)
        engine = Engine(runs, device="cpu", together=together)
        fresh = [engine.learner(run) for run in runs]
        for stage in engine.stages():
            one = stage.learner
            shut = one.stream.opening > stage.stage
            for name in one.networks.class_rows:
                now, first = one.params[name], fresh[stage.run].params[name]
                require(
                    torch.equal(now[shut], first[shut]),
                    f"{name} of classes not opened yet "
                    f"moved in task {stage.stage}: write into learner.params only rows of "
                    "open classes",
                )


def check_finish_leaves_statistics_alone(method: Method) -> None:
    """Host verbs move no running statistics of batch normalisation; training does."""
    moved: list[str] = []

    def around(verb: str, original: HostVerb, learner: RunLearner, task: Task) -> None:
        layers = normalisation(learner)
        kept = {k: learner.buffers[k].clone() for names, _ in layers for k in names}
        original(learner, task)
        if any(not torch.equal(v, learner.buffers[k]) for k, v in kept.items()):
            moved.append(verb)

    watched = spy_on_host_verbs(shrink_settings(method), around)
    runs = make_runs(watched, make_streams()[:1], model="normed")
    fresh = Engine(runs, device="cpu").learner(runs[0])
    if not normalisation(fresh):
        raise DoesNotApply("the network has no batch normalisation")
    first = train_runs(runs)[0, 0]
    require(
        not moved,
        f"{', '.join(sorted(set(moved)))} moves running statistics: pass rows "
        "through learner.outputs, learner.net() or learner.average_gradient",
    )
    before, after = (fresh.networks.layout(one.vector) for one in (fresh, first))
    for names, weights in normalisation(fresh):
        trained = any(not torch.equal(before[k], after[k]) for k in weights)
        still = all(torch.equal(fresh.buffers[k], first.buffers[k]) for k in names)
        require(
            not (trained and still),
            "training moves no running statistics: the network must be "
            "called through net, which is in training mode",
        )


def normalisation(learner: RunLearner) -> list[tuple[list[str], list[str]]]:
    """List batch normalisations of the main network: names of their statistics and weights."""
    found = []
    for name, layer in learner.networks.train.named_modules():
        if isinstance(layer, BatchNorm) and name.startswith(f"{MAIN}."):
            statistics = [f"{name}.{own}" for own, _ in layer.named_buffers()]
            found.append((statistics, [f"{name}.{own}" for own, _ in layer.named_parameters()]))
    return found


# Known classes in further domains.


CLASSES, DOMAINS, ROWS = 4, 3, 18
ENOUGH_KNOWN_CLASS_ACCURACY = 0.6  # chance is 0.25


def make_domain_stream() -> Stream:
    """Make a stream with the same classes in every task, in different places."""
    key, groups = keys.fold(0, "domains"), CLASSES * DOMAINS
    centres = 3 * keys.normal(keys.fold(key, "centres"), groups, *sample_shape())
    parts = []
    for purpose, rows in (("train", ROWS), ("test", TESTS)):
        group = torch.arange(groups).repeat_interleave(rows)
        noise = keys.normal(keys.fold(key, purpose), len(group), *sample_shape())
        parts.append(((centres[group] + noise).float(), group))
    (x, group), (test_x, test_group) = parts
    domain = torch.cat([group, test_group]) // CLASSES
    data = Data.from_arrays(
        x, group % CLASSES, test=(test_x, test_group % CLASSES), name="domains",
        attributes={"domain": domain},
    )  # fmt: skip
    return domain_incremental(data, by="domain")


def check_known_classes_are_learnt(method: Method) -> None:
    """Tasks that show classes of earlier tasks in another domain are learnt, or refused at once."""
    worst, mine = 0.0, shrink_settings(method, LEARNS)
    for one in list_milder_methods(mine):  # the second only if the first is not enough
        trained = train_unless_refused(make_runs(one, [make_domain_stream()], training=LEARNS))
        worst = max(worst, min(accuracies(after)[-1] for after in trained.values()))
        if worst > ENOUGH_KNOWN_CLASS_ACCURACY:
            return
    # averages, merged weights and pooled means follow the labels, but slowly
    if heed_labels(mine, make_domain_stream(), 1) > ENOUGH_HEEDED:
        return
    raise BrokenRule(
        f"accuracy on a further domain of known classes is {worst:.2f} right after its training, "
        f"guessing gives {1 / CLASSES:.2f}, and with other labels in that task its answers are no "
        "worse: classes that a task shows need not be new "
        "(learner.stream.visible[learner.stage], not batch.new), or raise BadArgument in start",
    )


def list_milder_methods(method: Method) -> Iterator[Method]:
    """Iterate over the method and milder variants, as a penalty may be too strong."""
    yield method
    smaller = change_parts(method, lambda part: scale_floats(part, 1 / 64))
    if smaller != method:
        yield smaller


# Labels that are refined: a superclass first, its subclasses later.


TREE: dict[str, list[str | int]] = {"A": [0, 1], "B": [2, 3]}
REFINED_ORDERS: tuple[tuple[tuple[str | int, ...], ...], ...] = (
    (("A", "B"), (0, 2, 4), (1, 3, 5)),
    (("B", 5), ("A", 2, 4), (0, 1, 3)),
    (("A", 4), ("B", 1, 5), (3, 0, 2)),
)


def make_refined_streams() -> list[Stream]:
    """Make three streams over one label tree, with rows shared by super- and subclasses."""
    data, found = make_clouds(), []
    for order in REFINED_ORDERS:
        tasks = [[_full_name(name) for name in group] for group in order]
        stream = hierarchical(data, hierarchy=TREE, tasks=tasks, valid=0.0, post_valid=0.0)
        found.append(stream)
    # runs in lockstep share one Data
    return [Stream(data=found[0].data, tasks=one.tasks) for one in found]


def _full_name(name: str | int) -> str:
    return f"superclass/{name}" if isinstance(name, str) else f"fine/{name}"


def _require_label_sets(method: Method) -> None:
    if DECISIONS["set"] not in method.decides:
        raise DoesNotApply("it decides by argmax, so streams with label sets are refused")


def check_refined_labels_in_lockstep(method: Method) -> None:
    """With refined labels, lockstep gives the numbers of the loop too."""
    _require_label_sets(method)
    require_lockstep_is_alone(make_runs(shrink_settings(method), make_refined_streams()))


def check_stored_labels_stay_incomplete(method: Method) -> None:
    """Exemplars come back with the labels of their own task, not with those that came later."""
    _require_label_sets(method)
    if method.memory is None or method.reads == "past":
        raise DoesNotApply("keeps no exemplars, or may read the past")
    at = enter_task(shrink_settings(method), stage=2, on=make_refined_streams()[:2])
    stream = at.learners[0].stream
    for batch in at.own_batches():
        for part in (batch, *batch.memory):
            told = (part.y >= 0) & (part.w > 0)[:, None]
            own = stream.visible[part.stage[:, None], part.y.clamp(min=0)]
            require(
                not bool((told & ~own).any()),
                "a row comes with a label that its own task did not show: exemplars keep the "
                "labels they were stored with",
            )


# Label sets.


LEARNS_LABELS = replace(EXACT, optimizer="adam", lr=0.01, epochs=30)
ENOUGH_LABEL_SCORE = 0.7  # one of the two labels of each row, and nothing else, gives 0.5


def make_label_set_stream() -> Stream:
    """Make three tasks of two classes, whose rows also have one of two common labels."""
    plain = make_clouds()
    own, count = plain.labels, len(SIZES)
    shared = count + own % 2
    data = replace(
        plain, y=torch.stack([own, shared], 1), classes=tuple(map(str, range(count + 2)))
    )
    both, tasks = (count, count + 1), []
    for first in range(0, count, 2):
        pair = (first, first + 1)
        train_rows, test = (
            part[torch.isin(own[part], torch.tensor(pair))] for part in (data.train, data.test)
        )
        new = pair if first else (*pair, *both)
        tasks.append(Task(train=train_rows, test=test, new=new, visible=(*pair, *both)))
    return Stream(data=data, tasks=tuple(tasks))


def score_newest_task(after: StageCopy) -> float:
    """Compute the precision-weighted Jaccard score of the task just learnt, over open classes."""
    stream, now = after.stage.learner.stream, after.stage.stage
    rows, stages = test_items(stream, slice(0, now + 1))
    mine = (stages == now).numpy()
    columns = np.arange(len(stream.order))
    truth = (stream.targets[rows][:, :, None].numpy() == columns).any(1)
    said = (after.scores[: len(rows)] > 0) & (stream.opening <= now).numpy()
    return float(metrics.precision_weighted_jaccard(truth[mine], said[mine]))


def check_label_sets(method: Method) -> None:
    """Both labels of a row are learnt, unless the method decides by argmax."""
    if DECISIONS["set"] not in method.decides:
        raise DoesNotApply("it decides by argmax, so streams with label sets are refused")
    trained = train_runs(
        make_runs(
            shrink_settings(method, LEARNS_LABELS),
            [make_label_set_stream()],
            training=LEARNS_LABELS,
        )
    )
    found = score_newest_task(trained[0, 0])  # of the first task: later ones have a past to be kept
    require(
        found > ENOUGH_LABEL_SCORE,
        "it declares a threshold on its scores, but after the first task the labels above 0 have a "
        f"precision-weighted Jaccard score of {found:.2f} (one right label of two: 0.50): use "
        "net.task or a loss with a yes or no for each label of batch.y, or leave "
        "decides = ('argmax',)",
    )
    require(max(trained)[1] == 2, "the run ended early")
