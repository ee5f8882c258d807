"""Any user's module made fit for padded, mapped and resumed runs, or the reason why not."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from engram.models.forward_pass import forward_context
from engram.models.functional_call import call_with_weights, differentiate, find_tied_names
from engram.models.layers import BatchNorm, Dropout

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_NOISY = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
Weights = dict[str, Tensor]


def adapt(module: nn.Module, sample_shape: tuple[int, ...] | None = None) -> nn.Module:
    """A deep copy of `module` with stock batch norm and dropout swapped for ours.

    The copy answers ``mappable`` (runs may train in lockstep), ``unmappable`` (the reasons if
    not) and ``mixes_rows`` (a layer remains that mixes rows without knowing their weights, so
    that padding would change the result). With `sample_shape` a mapped gradient is tried, too.

    Examples
    --------
    >>> ours = adapt(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1)), (4,))
    >>> type(ours[1]).__name__, type(ours[2]).__name__, ours.mappable
    ('BatchNorm', 'Dropout', True)
    """
    done: dict[int, nn.Module] = {}
    result = _swap_layers(copy.deepcopy(module), done)
    mixing, others = _check_left_over(result)
    reasons = mixing + others
    if sample_shape is not None and not reasons:
        reasons = _try_mapping(result, sample_shape)
    found: Any = result
    found.mappable, found.unmappable, found.mixes_rows = not reasons, tuple(reasons), bool(mixing)
    return result


def _swap_layers(module: nn.Module, done: dict[int, nn.Module]) -> nn.Module:
    """Replace layers below and including `module`; a shared layer stays shared."""
    if id(module) in done:
        return done[id(module)]
    new = module
    if type(module) in _NORMS:
        new = _convert_norm(module)
    elif type(module) is nn.Dropout or type(module) in _CHANNEL_DROPOUTS:
        new = _convert_dropout(module)
    if new is not module:
        new.train(module.training)
        new._forward_hooks = module._forward_hooks
        new._forward_pre_hooks = module._forward_pre_hooks
    done[id(module)] = new
    done[id(new)] = new
    for name, child in list(new._modules.items()):  # named_children lists shared layers once only
        if child is not None:
            new._modules[name] = _swap_layers(child, done)
    return new


def _convert_norm(stock: Any) -> nn.Module:
    if stock.momentum is None or not stock.track_running_stats:
        unchanged: nn.Module = stock
        return unchanged
    ours = BatchNorm(stock.num_features, stock.momentum, stock.eps, affine=stock.affine)
    if stock.affine:
        ours.weight, ours.bias = stock.weight, stock.bias
    ours.mean, ours.var = stock.running_mean, stock.running_var
    return ours


def _convert_dropout(stock: Any) -> Dropout:
    return Dropout(stock.p, channels=type(stock) in _CHANNEL_DROPOUTS)


def _check_left_over(module: nn.Module) -> tuple[list[str], list[str]]:
    """Layers that mix rows without weights, and other layers that cannot be mapped."""
    mixing, others = [], []
    for path, layer in module.named_modules():
        what = f"{path or 'the module'} ({type(layer).__name__})"
        if isinstance(layer, _BatchNorm):
            mixing.append(f"{what} uses batch statistics in a way that cannot be replaced")
        elif isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            mixing.append(f"{what} averages running statistics over padding rows")
        elif isinstance(layer, _NOISY):
            others.append(f"{what} draws from torch's global generator")
        elif isinstance(layer, nn.RNNBase) and layer.dropout > 0:
            others.append(f"{what} draws its dropout from torch's global generator")
        elif isinstance(layer, nn.RNNBase):
            others.append(f"torch cannot map {what} over runs")
    return mixing, others


def explain_no_split(module: nn.Module) -> list[str]:
    """Why the rows of a batch cannot go through a network in shares; nothing if they can.

    Examples
    --------
    >>> explain_no_split(nn.Sequential(nn.Linear(2, 2), BatchNorm(2), Dropout(0.5)))
    []
    >>> explain_no_split(nn.BatchNorm1d(2, momentum=None))
    ['the module (BatchNorm1d) uses batch statistics in a way that cannot be replaced']
    """
    mixing, others = _check_left_over(module)
    return mixing + [reason for reason in others if "torch's global generator" in reason]


def _try_mapping(module: nn.Module, sample_shape: tuple[int, ...]) -> list[str]:
    """Map what a run maps over two copies; what fails here would fail there."""
    weights = {k: v.detach() for k, v in module.named_parameters() if v.is_floating_point()}
    if not weights:
        return []
    first, tied = next(iter(weights.values())), find_tied_names(module)
    rows = torch.zeros(2, *sample_shape, dtype=first.dtype, device=first.device)
    own = dict(module.named_buffers())
    many, buffers = ({k: torch.stack([v, v]) for k, v in d.items()} for d in (weights, own))
    key = torch.arange(2, device=first.device)

    def total(weights: Weights, buffers: Weights, key: Tensor, rows: Tensor) -> Tensor:
        with forward_context(torch.ones(len(rows), device=first.device), key):
            answer: Tensor = call_with_weights(module, {**weights, **buffers}, (rows,), tied)
        return answer.sum()

    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            module.train()
            vmap(differentiate(total), (0, 0, 0, None))(many, buffers, key, rows)
            module.eval()
            vmap(total, (0, 0, 0, None))(many, buffers, key, rows)
            vmap(differentiate(total), (None, None, 0, 0))(
                weights, own, key, rows[:, None]
            )  # importance
    except Exception as error:  # whatever a user's forward pass may raise
        first_line = (str(error) or repr(error)).splitlines()[0]
        return [f"mapping over runs failed: {first_line}"]
    finally:
        for layer, training in modes:
            layer.training = training
    return []
