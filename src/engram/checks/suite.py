"""The suite: a target in, a report out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import nn

from engram import methods
from engram.checks import (
    detector_rules,
    equality,
    leakage,
    learning,
    method_form,
    network_rules,
    oracles,
    policy_rules,
    probe_rules,
)
from engram.checks.check_report import Finding, Report, findings
from engram.errors import bad
from engram.memory import Memory, Policy
from engram.memory import policies as policy_names
from engram.methods.method import Method
from engram.models import models
from engram.novelty import Detector
from engram.novelty import detectors as detector_names
from engram.plugins import own_object, unknown_name
from engram.probes import Probe

Check = Callable[[Any], None]

METHOD_CHECKS: tuple[Check, ...] = (
    method_form.check_frozen_dataclass_with_defaults,
    method_form.check_recipe_round_trip,
    method_form.check_declarations,
    method_form.check_verbs_are_known,
    method_form.check_verbs_return_what_they_should,
    leakage.check_reads_only_what_it_may,
    leakage.check_memory_within_budget,
    method_form.check_stays_finite,
    method_form.check_single_precision,
    method_form.check_state_has_one_shape,
    equality.check_loss_is_pure,
    equality.check_step_is_pure,
    equality.check_interval_waits,
    equality.check_scores_row_by_row,
    equality.check_maps_without_host_decisions,
    equality.check_lockstep_is_the_loop,
    equality.check_lockstep_with_batch_norm,
    equality.check_lockstep_with_dropout,
    equality.check_lockstep_with_strengths,
    equality.check_other_settings_beside_it,
    equality.check_resume_is_uninterrupted,
    equality.check_class_ids_do_not_matter,
    equality.check_a_diverging_run_harms_no_other,
    leakage.check_test_and_future_rows_do_not_matter,
    leakage.check_labels_out_of_sight_do_not_matter,
    leakage.check_lost_rows_do_not_matter,
    leakage.check_places_of_test_rows_do_not_matter,
    leakage.check_keeps_no_samples_outside_its_memory,
    leakage.check_holds_no_more_for_more_rows,
    leakage.check_exemplars_are_trained_on,
    equality.check_it_does_something,
    learning.check_single_class_tasks,
    learning.check_one_class_first,
    learning.check_beats_chance,
    learning.check_task_incremental,
    oracles.check_replayed_classes_meet_new_ones,
    oracles.check_replayed_rows_meet_every_head,
    learning.check_known_classes_are_learnt,
    learning.check_label_sets,
    learning.check_refined_labels_in_lockstep,
    learning.check_stored_labels_stay_incomplete,
    learning.check_state_is_a_tree_of_tensors,
    learning.check_unopened_columns_stand_still,
    learning.check_finish_leaves_statistics_alone,
    oracles.check_importance_is_per_sample,
    oracles.check_step_gets_the_plain_gradient,
    oracles.check_old_networks_are_in_eval_mode,
)
# What fails here fails nearly everywhere: checks behind one of these are not run if it failed.
ROOTS: tuple[Check, ...] = (
    method_form.check_declarations,
    method_form.check_verbs_are_known,
    method_form.check_verbs_return_what_they_should,
    leakage.check_reads_only_what_it_may,
    leakage.check_memory_within_budget,
    method_form.check_stays_finite,
)
# And some need another one: runs that train together a step that maps, and so on.
NEEDS: dict[Check, tuple[Check, ...]] = {
    **dict.fromkeys(
        (
            equality.check_lockstep_with_batch_norm,
            equality.check_lockstep_with_dropout,
            equality.check_lockstep_with_strengths,
            equality.check_other_settings_beside_it,
            equality.check_a_diverging_run_harms_no_other,
            learning.check_refined_labels_in_lockstep,
        ),
        (
            equality.check_loss_is_pure,
            equality.check_maps_without_host_decisions,
            equality.check_lockstep_is_the_loop,
        ),
    ),
    **dict.fromkeys(  # they look at runs side by side
        (
            equality.check_loss_is_pure,
            equality.check_step_is_pure,
            equality.check_interval_waits,
            equality.check_scores_row_by_row,
            equality.check_maps_without_host_decisions,
            leakage.check_holds_no_more_for_more_rows,
            oracles.check_step_gets_the_plain_gradient,
            oracles.check_old_networks_are_in_eval_mode,
        ),
        (method_form.check_state_has_one_shape,),
    ),
    equality.check_lockstep_is_the_loop: (
        equality.check_loss_is_pure,
        equality.check_maps_without_host_decisions,
    ),
    **dict.fromkeys(  # they compare two trainings, which differ anyway if the loss has a past
        (
            equality.check_resume_is_uninterrupted,
            equality.check_class_ids_do_not_matter,
            leakage.check_test_and_future_rows_do_not_matter,
            leakage.check_labels_out_of_sight_do_not_matter,
            leakage.check_lost_rows_do_not_matter,
            leakage.check_places_of_test_rows_do_not_matter,
            learning.check_stored_labels_stay_incomplete,
        ),
        (equality.check_loss_is_pure,),
    ),
    learning.check_unopened_columns_stand_still: (equality.check_maps_without_host_decisions,),
    equality.check_it_does_something: (leakage.check_exemplars_are_trained_on,),
    learning.check_task_incremental: (learning.check_beats_chance,),
    oracles.check_replayed_classes_meet_new_ones: (learning.check_beats_chance,),
    learning.check_known_classes_are_learnt: (learning.check_beats_chance,),
    learning.check_label_sets: (learning.check_beats_chance,),
}
POLICY_CHECKS: tuple[Check, ...] = (
    policy_rules.check_prefix_of_a_ranking_is_a_ranking,
    policy_rules.check_only_the_seed_decides,
    policy_rules.check_policy_within_budget,
    policy_rules.check_policy_sees_no_future,
    policy_rules.check_policy_ignores_class_ids,
    policy_rules.check_policy_in_lockstep,
    policy_rules.check_reservoir_is_uniform,
)


def check(target: Any, *, sample_shape: tuple[int, ...] | None = None) -> Report:
    """Try a method, a memory policy, a probe or a network against every rule of the contract.

    Parameters
    ----------
    target
        A method, policy, probe or network, its class, its name in the library, or ``module:Class``
        (the module may be a path to a file). A class is tried with its defaults.
    sample_shape
        What a network reads; without it, usual shapes are tried in turn.

    Examples
    --------
    >>> report = check("random")
    >>> report.ok
    True
    """
    found = resolve(target)
    if is_network(found):
        one = network_rules.candidate(found, sample_shape)
        shown = f"{label(found)} on samples of shape {one.shape}"
        return Report(shown, findings(network_rules.NETWORK_CHECKS, one, needs))
    if sample_shape is not None:
        raise bad("sample_shape", f"None: {label(found)} is no network", sample_shape)
    if isinstance(found, type):
        name = found.__name__
        try:
            found = made(found)
        except TypeError as error:
            reason = f"{name}() does not work ({error}): give every field a default"
            return Report(name, [Finding("frozen dataclass with defaults", False, reason)])
    if isinstance(found, Method):
        return Report(label(found), findings(METHOD_CHECKS, found, needs))
    if isinstance(found, Probe):
        further = detector_rules.DETECTOR_CHECKS if isinstance(found, Detector) else ()
        return Report(label(found), findings((*probe_rules.PROBE_CHECKS, *further), found, needs))
    policy = found.policy if isinstance(found, Memory) else found
    return Report(label(policy), findings(POLICY_CHECKS, policy, needs))


def needs(one: Check) -> list[Check]:
    """The checks without which another one can find nothing new."""
    # what cannot be measured at all fails everywhere
    if one in (*probe_rules.PROBE_CHECKS[2:], *detector_rules.DETECTOR_CHECKS):
        return [probe_rules.check_measures_after_every_stage]
    if one in network_rules.NETWORK_CHECKS[1:]:
        compared = [network_rules.check_answers_the_same_again] * (one in network_rules.COMPARED)
        return [network_rules.check_answers_features, *compared]
    if one not in METHOD_CHECKS:
        return []
    place = METHOD_CHECKS.index(one)
    roots = [root for root in ROOTS if METHOD_CHECKS.index(root) < place]
    return [*roots, *NEEDS.get(one, ())]


def label(target: Any) -> str:
    """What to call a target."""
    if isinstance(target, str):
        return target
    return str(getattr(target, "__name__", type(target).__name__))


def made(kind: type[Any]) -> Any:
    """An instance with defaults; a composition gets two parts that have a bit of everything."""
    if kind is methods.Join:
        return methods.Join(methods.ER(), methods.EWC())
    return kind()


def is_network(target: Any) -> bool:
    """Whether a target is a network, its class, a factory or the name of a model."""
    if isinstance(target, str):
        return target in models()
    if isinstance(target, type):
        return issubclass(target, nn.Module)
    # functions are policies, which are given rows to rank, or factories
    ranks = inspect.isfunction(target) and "rows" in inspect.signature(target).parameters
    return isinstance(target, nn.Module) or (inspect.isfunction(target) and not ranks)


def resolve(target: Any) -> Any:
    """The method, policy, network or class that a target names."""
    if isinstance(target, str):
        return _named(target)
    if isinstance(target, type):
        if issubclass(target, Method | Probe | nn.Module) or hasattr(target, "rank"):
            return target
    elif isinstance(target, (Method, Memory, Policy, Probe, nn.Module, FunctionType)):
        return target
    raise bad("target", "a method, a policy, a probe, a network, or a class of these", target)


def _named(name: str) -> Any:
    if ":" in name:
        return resolve(own_object(name, what="target"))
    if name in methods.__all__:
        return getattr(methods, name)
    if name in policy_names():
        return name
    if name in detector_names():
        return detector_names()[name]
    if name in models():
        return name
    known = [*methods.__all__, *policy_names(), *detector_names(), *models()]
    raise unknown_name("target", name, known)
