"""iCaRL: binary outputs, the old network's outputs as targets, nearest-class-mean prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad, check_choice, check_float
from engram.learner.batch import Batch
from engram.learner.learner import EVAL_ROWS, RunLearner
from engram.learner.networks import Net
from engram.losses import bce_rows, ce_rows, distill_rows, mean, multi_hot
from engram.memory import Memory, check_memory
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec, State, Terms
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task

VARIANTS = ("nme", "hb1", "cnn", "norm")
REDUCTIONS = ("mean", "sum")
FORMS = ("sigmoid", "softmax")
OLD_TARGETS = ("network", "labels")
NO_MEAN_DISTANCE = 4.0  # of a class without a mean; the distance of unit vectors is at most 2


def soft_targets(y: Tensor, old_logits: Tensor, known: Tensor) -> Tensor:
    """Return targets [B, C]: labels as 0 or 1, but the old network's sigmoid for `known` classes.

    `known` is a mask [C] or [B, C].

    Examples
    --------
    >>> old, known = torch.tensor([[0.5, -1.0, 0.0]]), torch.tensor([True, True, False])
    >>> [round(t, 6) for t in soft_targets(torch.tensor([[2]]), old, known)[0].tolist()]
    [0.622459, 0.268941, 1.0]
    """
    shown = multi_hot(y, old_logits.shape[-1], old_logits.dtype)
    return torch.where(known, old_logits.sigmoid(), shown)


def distillation_targets(batch: Batch, old_logits: Tensor, shown: Tensor) -> Tensor:
    """Return targets [B, C]: labels, and the old network's sigmoid for known classes.

    For rows of the task, labels are used for all classes that it shows [C], known ones included.
    """
    labelled = shown & (batch.old == 0)[:, None]  # [B, C] entries decided by the task's labels
    return soft_targets(batch.y, old_logits, batch.known & ~labelled)


def class_means(
    features: Tensor, columns: Tensor, classes: int, *, normalize: bool = True
) -> tuple[Tensor, Tensor]:
    """Return means [C, d] of features [n, d], and which classes have one.

    Normalised means of normalised features, or plain means of the features as they are.

    Examples
    --------
    >>> features, columns = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    >>> class_means(features, columns, 1, normalize=False)[0].tolist()
    [[1.5, 0.5]]
    """
    used = F.normalize(features, dim=-1) if normalize else features
    total = torch.zeros(classes, used.shape[-1], dtype=used.dtype).index_add(0, columns, used)
    count = torch.bincount(columns, minlength=classes)
    if normalize:
        return F.normalize(total, dim=-1), count > 0
    return total / count.clamp(min=1)[:, None], count > 0


def mean_distances(features: Tensor, means: Tensor, *, normalize: bool = True) -> Tensor:
    """Compute distances [B, C] of normalised features [B, d] to unit vectors [C, d].

    Without `normalize`, of the features as they are to any vectors.
    """
    if normalize:
        cosines = F.normalize(features, dim=-1) @ means.T
        return (2 - 2 * cosines).clamp(min=0).sqrt()
    squares = features.square().sum(-1, keepdim=True) + means.square().sum(-1)
    return (squares - 2 * features @ means.T).clamp(min=0).sqrt()


def nearest_mean_scores(
    features: Tensor, means: Tensor, known: Tensor, *, normalize: bool = True
) -> Tensor:
    """Compute scores [B, C]: how much farther than the nearest class mean each one is, below 0.

    Classes that are not `known` [C] have no mean. The nearest scores 0, so that near ties are not
    lost in half precision.
    """
    distance = mean_distances(features, means, normalize=normalize)
    absent = NO_MEAN_DISTANCE if normalize else distance.amax(-1, keepdim=True) + 1
    distance = torch.where(known, distance, absent)
    return distance.amin(-1, keepdim=True) - distance


@dataclass(frozen=True, kw_only=True)
class ICaRL(Method):
    """Exemplars by herding, sigmoid distillation, and classification by the nearest class mean.

    The loss is binary cross-entropy per output, on the task and all exemplars. The target of a new
    class is whether it is among the labels; that of an old class is the old network's sigmoid, for
    every row. Where a task shows classes that are not new (another domain, further instances), its
    own rows have their labels as targets for all classes it shows, and the exemplars the old
    network's outputs. After a task, exemplars are chosen by herding, and class means of their
    features are computed with the current network.

    Parameters
    ----------
    memory
        Exemplars to keep, by herding. IIRC: 20 per class; RWalk: 10 and 25 per class; original:
        2000 in all.
    variant
        How to predict. ``nme``: the nearest class mean (between normalised features), once a task
        is finished; the outputs while it is being trained. ``hb1`` (RWalk), ``cnn`` (IIRC): the
        network's outputs. ``norm``: the same with a cosine head, scaled by a learnt number (IIRC).
        Rows with sets of labels need ``cnn`` or ``norm``: the nearest mean, and hb1's largest
        output, are one label.
    bce_reduction
        ``mean`` over the classes seen (IIRC), or their ``sum`` (original, RWalk).
    nme_flip
        Class means over exemplars and their mirror images (images only), as in the original.
    scale
        ``norm``: initial factor of the cosines, which is then learnt. IIRC starts at 1 and trains
        for long with a large learning rate; with few or small steps, a scale of 1 ends up rejecting
        every label, which is what lowers a mean over many classes most.
    reset_scale
        ``norm``: reset the scale whenever classes are added, as the released code of IIRC does;
        otherwise it carries over.
    nme_normalize
        Normalise features and means, as in the original; False compares them as they are.
    loss_form
        ``sigmoid``: binary cross-entropy per output (the original). ``softmax``: cross-entropy of
        the label among the seen classes, plus, of old classes, that of the old network's softmax at
        temperature 1; several libraries and the code of GEM have such a form.
    old_targets
        What outputs of old classes are trained to: what the old ``network`` gave, or ``labels``
        alone, without distillation.
    rehearse
        Train on the exemplars, too; False keeps them for the class means alone.

    Notes
    -----
    Rebuffi et al. 2017 (CVPR); hb1: Chaudhry et al. 2018 (ECCV); cnn, norm: Abdelsalam et al. 2021
    (CVPR). The training setting `loss` does not matter here.

    Examples
    --------
    >>> ICaRL().memory
    Memory(per_class=20, policy='herding')
    >>> ICaRL().head, ICaRL(variant="norm").head
    ('linear', {'name': 'cosine', 'scale': 10.0})
    """

    for_label_sets: ClassVar[str] = "variant=cnn or variant=norm"

    memory: Memory = field(default=Memory(per_class=20, policy="herding"))
    variant: str = "nme"
    bce_reduction: str = "mean"
    nme_flip: bool = False
    scale: PerRun = 10.0
    reset_scale: bool = False
    nme_normalize: bool = True
    loss_form: str = "sigmoid"
    old_targets: str = "network"
    rehearse: bool = True

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, VARIANTS)
        check_choice("bce_reduction", self.bce_reduction, REDUCTIONS)
        check_memory(self.memory)
        check_float("scale", self.scale, open_low=True)
        if self.reset_scale and self.variant != "norm":
            raise bad("reset_scale", "False unless the variant is norm", True)
        check_choice("loss_form", self.loss_form, FORMS)
        check_choice("old_targets", self.old_targets, OLD_TARGETS)

    @property
    def head(self) -> str | dict[str, Any]:
        return {"name": "cosine", "scale": self.scale} if self.variant == "norm" else "linear"

    @property
    def decides(self) -> tuple[str, ...]:
        one_label = self.variant in ("nme", "hb1") or self.loss_form == "softmax"
        return ("argmax",) if one_label else ARGMAX_OR_THRESHOLD

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("union" if self.rehearse else "none")

    def start(self, learner: RunLearner, task: Task) -> None:
        shape = learner.stream.data.sample_shape
        if self.nme_flip and len(shape) != 3:
            raise bad("nme_flip", f"False for samples of shape {shape}, no images", True)
        # means of the network before would be wrong as soon as the weights move
        learner.state = {}
        if learner.stage:
            shown = learner.stream.visible[learner.stage].to(learner.device)
            learner.state = {"teacher": learner.snapshot(), "shown": shown}
            if self.reset_scale and bool(learner.new.any()):
                learner.params.head.scale.fill_(self.scale)  # the teacher keeps its own

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits = net(batch.x, batch.w).logits
        distils = "teacher" in state and self.old_targets == "network"
        old = net.frozen(state["teacher"])(batch.x).logits if distils else None
        if self.loss_form == "softmax":
            rows = ce_rows(logits, batch.target, batch.seen)
            if old is not None:
                rows = rows + distill_rows(logits, old, batch.known, temperature=1.0)
            return {"task": mean(rows, batch.w)}
        if old is not None:
            targets = distillation_targets(batch, old, state["shown"])
        else:
            targets = multi_hot(batch.y, logits.shape[-1], logits.dtype)
        return {"task": mean(bce_rows(logits, targets, batch.seen, self.bce_reduction), batch.w)}

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
        learner.state = {}
        if self.variant == "nme" and len(learner.exemplars):
            columns = learner.exemplars.columns
            features = learner.outputs(learner.exemplars.rows, learner.exemplars.stages).features
            if self.nme_flip:
                features = torch.cat([features, mirrored_features(learner)])
                columns = columns.repeat(2)
            means, valid = class_means(
                features, columns, len(learner.opened), normalize=self.nme_normalize
            )
            learner.state = {"means": means.to(learner.device), "valid": valid.to(learner.device)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        if "means" not in state:
            return output
        scores = nearest_mean_scores(
            output.features, state["means"], state["valid"], normalize=self.nme_normalize
        )
        return output._replace(logits=scores)


@torch.no_grad()
def mirrored_features(learner: RunLearner) -> Tensor:
    """Compute features [n, d] of the exemplars' mirror images, on the CPU."""
    kept, net = learner.exemplars, learner.net()
    pairs = zip(kept.rows.split(EVAL_ROWS), kept.stages.split(EVAL_ROWS), strict=True)
    parts = [net(learner.batch(rows, stages).x.flip(-1)).features for rows, stages in pairs]
    return torch.cat(parts).cpu()
