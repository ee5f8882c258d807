"""`check`: run all checks that apply to a target, and report."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from torch import nn

from engram import methods
from engram.checks import (
    detector_rules,
    equality_rules,
    form_rules,
    leakage_rules,
    learning_rules,
    method_family_rules,
    network_rules,
    policy_rules,
    probe_rules,
    scenario_rules,
)
from engram.checks.check_report import (
    CheckFinding,
    CheckReport,
    check_name,
    run_check,
    run_checks,
)
from engram.checks.toy_runs import OwnNetwork, share_runs, use_network
from engram.data import Data
from engram.errors import bad
from engram.memory import Memory, Policy
from engram.memory import policies as policy_names
from engram.methods.method import Method
from engram.models import models
from engram.models.classifier import read_unmappable
from engram.models.user_networks import is_user_network_name, load_maker
from engram.novelty import Detector
from engram.novelty import detectors as detector_names
from engram.plugins import load_user_object, unknown_name
from engram.probes import Probe
from engram.streams import SCENARIOS

Check = Callable[[Any], None]

METHOD_CHECKS: tuple[Check, ...] = (
    form_rules.check_frozen_dataclass_with_defaults,
    form_rules.check_recipe_round_trip,
    form_rules.check_declarations,
    form_rules.check_verbs_are_known,
    form_rules.check_verbs_return_what_they_should,
    leakage_rules.check_reads_only_what_it_may,
    leakage_rules.check_memory_within_budget,
    form_rules.check_stays_finite,
    form_rules.check_single_precision,
    form_rules.check_state_has_one_shape,
    equality_rules.check_loss_is_pure,
    equality_rules.check_step_is_pure,
    equality_rules.check_step_waits_for_each_run,
    equality_rules.check_scores_row_by_row,
    equality_rules.check_rewritten_values_stay_in_their_rows,
    equality_rules.check_the_task_stays_unknown,
    equality_rules.check_maps_without_host_decisions,
    equality_rules.check_lockstep_is_the_loop,
    equality_rules.check_lockstep_with_batch_norm,
    equality_rules.check_lockstep_with_dropout,
    equality_rules.check_lockstep_with_strengths,
    equality_rules.check_other_settings_beside_it,
    equality_rules.check_resume_is_uninterrupted,
    equality_rules.check_class_ids_do_not_matter,
    equality_rules.check_a_diverging_run_harms_no_other,
    leakage_rules.check_test_and_future_rows_do_not_matter,
    leakage_rules.check_labels_out_of_sight_do_not_matter,
    leakage_rules.check_lost_rows_do_not_matter,
    leakage_rules.check_places_of_test_rows_do_not_matter,
    leakage_rules.check_closed_networks_wait,
    leakage_rules.check_keeps_no_samples_outside_its_memory,
    leakage_rules.check_holds_no_more_for_more_rows,
    leakage_rules.check_exemplars_are_trained_on,
    equality_rules.check_it_does_something,
    learning_rules.check_single_class_tasks,
    learning_rules.check_one_class_first,
    learning_rules.check_beats_chance,
    learning_rules.check_task_incremental,
    method_family_rules.check_replayed_classes_meet_new_ones,
    method_family_rules.check_replayed_rows_meet_every_head,
    learning_rules.check_known_classes_are_learnt,
    learning_rules.check_label_sets,
    learning_rules.check_refined_labels_in_lockstep,
    learning_rules.check_stored_labels_stay_incomplete,
    learning_rules.check_state_is_a_tree_of_tensors,
    learning_rules.check_unopened_columns_stand_still,
    learning_rules.check_finish_leaves_statistics_alone,
    method_family_rules.check_importance_is_per_sample,
    method_family_rules.check_step_gets_the_plain_gradient,
    method_family_rules.check_old_networks_are_in_eval_mode,
    method_family_rules.check_no_term_vanishes_in_a_shared_pass,
)
# A failure of these makes nearly all others fail, so those are not run then.
ROOT_CHECKS: tuple[Check, ...] = (
    form_rules.check_declarations,
    form_rules.check_verbs_are_known,
    form_rules.check_verbs_return_what_they_should,
    leakage_rules.check_reads_only_what_it_may,
    leakage_rules.check_memory_within_budget,
    form_rules.check_stays_finite,
)
# Other checks need a specific one: lockstep needs a step that maps, and so on.
REQUIRED_CHECKS: dict[Check, tuple[Check, ...]] = {
    **dict.fromkeys(
        (
            equality_rules.check_lockstep_with_batch_norm,
            equality_rules.check_lockstep_with_dropout,
            equality_rules.check_lockstep_with_strengths,
            equality_rules.check_other_settings_beside_it,
            equality_rules.check_a_diverging_run_harms_no_other,
            learning_rules.check_refined_labels_in_lockstep,
        ),
        (
            equality_rules.check_loss_is_pure,
            equality_rules.check_maps_without_host_decisions,
            equality_rules.check_lockstep_is_the_loop,
        ),
    ),
    **dict.fromkeys(  # compare runs in lockstep
        (
            equality_rules.check_loss_is_pure,
            equality_rules.check_step_is_pure,
            equality_rules.check_step_waits_for_each_run,
            equality_rules.check_scores_row_by_row,
            equality_rules.check_rewritten_values_stay_in_their_rows,
            equality_rules.check_maps_without_host_decisions,
            leakage_rules.check_holds_no_more_for_more_rows,
            method_family_rules.check_step_gets_the_plain_gradient,
            method_family_rules.check_old_networks_are_in_eval_mode,
            method_family_rules.check_no_term_vanishes_in_a_shared_pass,
        ),
        (form_rules.check_state_has_one_shape,),
    ),
    equality_rules.check_lockstep_is_the_loop: (
        equality_rules.check_loss_is_pure,
        equality_rules.check_maps_without_host_decisions,
    ),
    **dict.fromkeys(  # compare two trainings, which differ anyway if the loss is impure
        (
            equality_rules.check_resume_is_uninterrupted,
            equality_rules.check_class_ids_do_not_matter,
            leakage_rules.check_test_and_future_rows_do_not_matter,
            leakage_rules.check_labels_out_of_sight_do_not_matter,
            leakage_rules.check_lost_rows_do_not_matter,
            leakage_rules.check_places_of_test_rows_do_not_matter,
            learning_rules.check_stored_labels_stay_incomplete,
        ),
        (equality_rules.check_loss_is_pure,),
    ),
    learning_rules.check_unopened_columns_stand_still: (
        equality_rules.check_maps_without_host_decisions,
    ),
    equality_rules.check_it_does_something: (leakage_rules.check_exemplars_are_trained_on,),
    learning_rules.check_task_incremental: (learning_rules.check_beats_chance,),
    method_family_rules.check_replayed_classes_meet_new_ones: (learning_rules.check_beats_chance,),
    learning_rules.check_known_classes_are_learnt: (learning_rules.check_beats_chance,),
    learning_rules.check_label_sets: (learning_rules.check_beats_chance,),
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


# What runs in lockstep, and what is learnt, of a method on a network of the user's.
LOCKSTEP_CHECKS: tuple[Check, ...] = (
    equality_rules.check_maps_without_host_decisions,
    equality_rules.check_lockstep_is_the_loop,
    equality_rules.check_lockstep_with_strengths,
    equality_rules.check_other_settings_beside_it,
    equality_rules.check_a_diverging_run_harms_no_other,
    learning_rules.check_refined_labels_in_lockstep,
)
LEARNING_CHECKS: tuple[Check, ...] = (
    learning_rules.check_beats_chance,
    learning_rules.check_task_incremental,
    method_family_rules.check_replayed_classes_meet_new_ones,
    learning_rules.check_known_classes_are_learnt,
    learning_rules.check_label_sets,
)


def check(
    target: Any,
    *,
    sample_shape: tuple[int, ...] | None = None,
    model: Any = None,
    data: Data | None = None,
    options: Mapping[str, Any] | None = None,
) -> CheckReport:
    """Check a method, policy, probe, detector, network or scenario against its contract.

    Parameters
    ----------
    target
        A method, policy, probe, network or scenario, its class, its name in the library, or
        ``module:Class`` (the module may be a path to a file). A class is checked with its defaults.
    sample_shape
        Input shape of a network; by default, usual shapes are tried in turn.
    model
        The network on which a method is checked, in place of toy networks: a module, its class, a
        factory or a name. It is checked itself first.
    data, options
        Of a scenario: the data that it divides, by default small ones, and its arguments.

    Examples
    --------
    >>> report = check("random")
    >>> report.ok
    True
    """
    found = resolve_target(target)
    if scenario_rules.is_scenario(found):
        divided = scenario_rules.make_scenario(target, data, options or {})
        findings = run_checks(scenario_rules.SCENARIO_CHECKS, divided, required_checks)
        return CheckReport(target_name(found), findings)
    if data is not None or options:
        raise bad("data", f"None: {target_name(found)} is no scenario", data or options)
    if model is not None:
        return _check_on_network(found, model, sample_shape)
    if is_network(found):
        one = network_rules.make_candidate(found, sample_shape)
        shown = f"{target_name(found)} on samples of shape {one.shape}"
        return CheckReport(shown, run_checks(network_rules.NETWORK_CHECKS, one, required_checks))
    if sample_shape is not None:
        raise bad("sample_shape", f"None: {target_name(found)} is no network", sample_shape)
    if isinstance(found, type):
        name = found.__name__
        try:
            found = make_default(found)
        except TypeError as error:
            reason = f"{name}() does not work ({error}): give every field a default"
            return CheckReport(
                name, [CheckFinding("frozen dataclass with defaults", False, reason)]
            )
    if isinstance(found, Method):
        with share_runs():
            findings = run_checks(METHOD_CHECKS, found, required_checks)
        return CheckReport(target_name(found), findings)
    if isinstance(found, Probe):
        further = detector_rules.DETECTOR_CHECKS if isinstance(found, Detector) else ()
        return CheckReport(
            target_name(found),
            run_checks((*probe_rules.PROBE_CHECKS, *further), found, required_checks),
        )
    policy = found.policy if isinstance(found, Memory) else found
    return CheckReport(target_name(policy), run_checks(POLICY_CHECKS, policy, required_checks))


def _check_on_network(found: Any, model: Any, sample_shape: tuple[int, ...] | None) -> CheckReport:
    """Check a method on a network of the user's; a network that fails alone ends it."""
    method = make_default(found) if isinstance(found, type) else found
    if not isinstance(method, Method):
        raise bad("model", f"None: {target_name(found)} is no method", model)
    maker = load_maker(model) if is_user_network_name(model) else model
    one = network_rules.make_candidate(maker, sample_shape)
    on = f"{target_name(maker)} on samples of shape {one.shape}"
    own = run_checks(network_rules.NETWORK_CHECKS, one, required_checks)
    if any(not each.passed for each in own):
        return CheckReport(on, own)
    idle: dict[Check, str] = {}
    with use_network(OwnNetwork(maker, one.shape)):
        if reasons := read_unmappable(one.net):
            why = f"its network trains one run at a time: {'; '.join(reasons)}"
            idle |= dict.fromkeys(LOCKSTEP_CHECKS, why)
        if not run_check(learning_rules.check_beats_chance, methods.Finetune()).passed:
            why = "nor does plain finetuning learn the toy data with this network"
            idle |= dict.fromkeys(LEARNING_CHECKS, why)
        with share_runs():
            findings = run_checks(
                [one for one in METHOD_CHECKS if one not in idle], method, required_checks
            )
    findings += [
        CheckFinding(check_name(each), True, f"does not apply: {why}") for each, why in idle.items()
    ]
    return CheckReport(f"{target_name(method)} with {on}", findings)


def required_checks(one: Check) -> list[Check]:
    """Return the checks whose failure makes another one pointless."""
    # a probe that cannot measure at all fails everywhere
    if one in (*probe_rules.PROBE_CHECKS[2:], *detector_rules.DETECTOR_CHECKS):
        return [probe_rules.check_measures_after_every_stage]
    if one in network_rules.NETWORK_CHECKS[1:]:
        compared = [network_rules.check_answers_the_same_again] * (
            one in network_rules.COMPARED_CHECKS
        )
        return [network_rules.check_answers_features, *compared]
    if one in scenario_rules.SCENARIO_CHECKS[1:]:
        return [scenario_rules.check_makes_a_stream]
    if one not in METHOD_CHECKS:
        return []
    place = METHOD_CHECKS.index(one)
    roots = [root for root in ROOT_CHECKS if root in METHOD_CHECKS[:place]]
    return [*roots, *REQUIRED_CHECKS.get(one, ())]


def target_name(target: Any) -> str:
    """Return the name of a target."""
    if isinstance(target, str):
        return target
    return str(getattr(target, "__name__", type(target).__name__))


def make_default(kind: type[Any]) -> Any:
    """Make an instance with defaults; a composition gets two parts with many features."""
    if kind is methods.Join:
        return methods.Join(methods.ER(), methods.EWC())
    return kind()


def is_network(target: Any) -> bool:
    """Return whether a target is a network, its class, a factory or a model name."""
    if isinstance(target, str):
        return target in models()
    if isinstance(target, type):
        return issubclass(target, nn.Module)
    # a function is a policy, which takes rows to rank, or a factory
    ranks = inspect.isfunction(target) and "rows" in inspect.signature(target).parameters
    return isinstance(target, nn.Module) or (inspect.isfunction(target) and not ranks)


def resolve_target(target: Any) -> Any:
    """Resolve a target to a method, policy, network or class."""
    if isinstance(target, str):
        return _resolve_name(target)
    if isinstance(target, type):
        if issubclass(target, Method | Probe | nn.Module) or hasattr(target, "rank"):
            return target
    elif isinstance(target, (Method, Memory, Policy, Probe, nn.Module, FunctionType)):
        return target
    wanted = "a method, a policy, a probe, a network, a class of these, or a scenario"
    raise bad("target", wanted, target)


def _resolve_name(name: str) -> Any:
    if ":" in name:
        return resolve_target(load_user_object(name, what="target"))
    if name in methods.__all__:
        return getattr(methods, name)
    if name in policy_names():
        return name
    if name in detector_names():
        return detector_names()[name]
    if name in models():
        return name
    if name in SCENARIOS:
        return SCENARIOS[name]
    known = [*methods.__all__, *policy_names(), *detector_names(), *models(), *SCENARIOS]
    raise unknown_name("target", name, known)
