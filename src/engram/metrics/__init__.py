"""Pure functions of recorded numbers: accuracy matrices, predictions, scores, costs.

Inputs may be lists, numpy arrays or torch tensors. Several runs are leading axes.
"""

from __future__ import annotations

from engram.metrics.classes import (
    PrecisionRecall,
    accuracy,
    class_accuracy,
    confusion_matrix,
    expected_calibration_error,
    f1_score,
    precision_recall_f1,
    task_accuracy,
    top_k_accuracy,
)
from engram.metrics.comparison import Comparison, compare
from engram.metrics.cost import Cost, bytes_held, human_bytes, total_cost
from engram.metrics.hierarchy import ancestors, hierarchical_f1, mistake_depth
from engram.metrics.labels import (
    StageScores,
    confusion,
    exact_match,
    jaccard,
    label_calibration_error,
    micro_recall,
    precision_weighted_jaccard,
    stage_scores,
    subclass_precision,
    threshold,
)
from engram.metrics.matrix import (
    FORGETTING_DEFINITIONS,
    average_accuracy,
    backward_transfer,
    curve,
    forgetting,
    forgetting_bound,
    forward_transfer,
    intransigence,
    learning_accuracy,
    per_task_forgetting,
)
from engram.metrics.novelty import aupr_in, auroc, detection_error, fpr_at_tpr
from engram.metrics.order import OrderDisparity, order_disparity
from engram.metrics.pairs import PairScores, mean_over_tasks, pair_scores
from engram.metrics.significance import (
    PairedTest,
    Ranking,
    all_pairs,
    benjamini_hochberg,
    holm,
    paired_differences,
    paired_t_test,
    rank_methods,
    sign_flip_test,
    wilcoxon_test,
)
from engram.metrics.statistics import (
    Interval,
    bootstrap_interval,
    mean,
    std,
    t_interval,
    variance_shares,
)

__all__ = [
    "FORGETTING_DEFINITIONS",
    "Comparison",
    "Cost",
    "Interval",
    "OrderDisparity",
    "PairScores",
    "PairedTest",
    "PrecisionRecall",
    "Ranking",
    "StageScores",
    "accuracy",
    "all_pairs",
    "aupr_in",
    "auroc",
    "average_accuracy",
    "backward_transfer",
    "benjamini_hochberg",
    "bootstrap_interval",
    "bytes_held",
    "class_accuracy",
    "compare",
    "confusion",
    "confusion_matrix",
    "curve",
    "detection_error",
    "exact_match",
    "expected_calibration_error",
    "f1_score",
    "forgetting",
    "forgetting_bound",
    "forward_transfer",
    "fpr_at_tpr",
    "holm",
    "human_bytes",
    "intransigence",
    "jaccard",
    "label_calibration_error",
    "learning_accuracy",
    "mean",
    "mean_over_tasks",
    "micro_recall",
    "order_disparity",
    "pair_scores",
    "paired_differences",
    "paired_t_test",
    "per_task_forgetting",
    "precision_recall_f1",
    "precision_weighted_jaccard",
    "rank_methods",
    "sign_flip_test",
    "stage_scores",
    "std",
    "subclass_precision",
    "t_interval",
    "task_accuracy",
    "threshold",
    "top_k_accuracy",
    "total_cost",
    "variance_shares",
    "wilcoxon_test",
    "ancestors",
    "hierarchical_f1",
    "mistake_depth",
]
