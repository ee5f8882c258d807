"""User networks: a module, a class or a factory, called with the arguments it declares."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from engram.errors import bad, user_code_location
from engram.plugins import load_user_object

# parameters that receive the shape of a sample, and the number of classes
SHAPE_ARGUMENTS = ("sample_shape", "input_shape", "shape")
CLASS_COUNT_ARGUMENTS = ("num_classes", "n_classes")
Maker = nn.Module | Callable[..., nn.Module]


def is_user_network_name(name: Any) -> bool:
    """Whether a model is named as a user's: ``module:Net``.

    Examples
    --------
    >>> is_user_network_name("net.py:Net"), is_user_network_name("mlp")
    (True, False)
    """
    return isinstance(name, str) and ":" in name


def load_maker(name: Any) -> Maker:
    """Load the module, class or factory of a name; other values are returned as they are."""
    found = load_user_object(name, what="model") if isinstance(name, str) else name
    if not isinstance(found, nn.Module) and not callable(found):
        raise bad("model", "a name, a dict, a torch.nn.Module, its class or a factory", found)
    maker: Maker = found
    return maker


def maker_options(maker: Maker) -> tuple[str, ...]:
    """Return the options of a user's class or factory; a module has none."""
    if isinstance(maker, nn.Module):
        return ()
    known, taken = _parameters(maker), {*SHAPE_ARGUMENTS, *CLASS_COUNT_ARGUMENTS}
    usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(one.name for one in known.values() if one.kind in usual and one.name not in taken)


def takes_any_option(maker: Any) -> bool:
    """Whether a class or factory has ``**options``, so that only a call can tell which it knows.

    Examples
    --------
    >>> takes_any_option(nn.LSTM), takes_any_option(nn.Linear)
    (True, False)
    """
    if isinstance(maker, nn.Module) or not callable(maker):
        return False
    return any(one.kind is one.VAR_KEYWORD for one in _parameters(maker).values())


def make_network(
    maker: Maker, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]
) -> nn.Module:
    """Copy the module, or call the class or factory.

    Parameters called ``sample_shape`` (or ``input_shape``, ``shape``) get the shape of a sample,
    ``num_classes`` (or ``n_classes``) the number of classes; without the former, a first parameter
    that has no default gets the shape.
    """
    if isinstance(maker, nn.Module):
        if options:
            raise bad("options", "none for a module that has already been built", sorted(options))
        return copy.deepcopy(maker)  # the dry run sizes lazy layers, the user's stay as they are
    known = _parameters(maker)
    told = {name: shape for name in SHAPE_ARGUMENTS if name in known and name not in options}
    counts = {
        name: classes for name in CLASS_COUNT_ARGUMENTS if name in known and name not in options
    }
    first = (shape,) if not told and _passes_shape(maker, known, options) else ()
    given = {**told, **counts, **options}
    _check_call(maker, first, given, options)
    try:
        module = maker(*first, **given)
    except (TypeError, ValueError, RuntimeError) as error:
        if not first or user_code_location(error):
            raise
        name = _name(maker)
        expected = (
            f"{name} to take the shape of a sample, {shape}, as its first argument; options: "
            f"model={{'name': {name}, 'width': 5}}, on the command line --set model.width=5"
        )
        raise bad("model", expected, f"{type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise bad("model", "a factory that returns a torch.nn.Module", module)
    return module


# -- parameters that a network keeps from training by other means than requires_grad ---------------


def refuse_gradient_hooks(module: nn.Module) -> None:
    """Raise for parameters with hooks: the weights that train are copies, which have none."""
    for name, value in module.named_parameters():
        hooks = (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None))
        if any(hooks):
            expected = (
                "parameters without hooks on their gradients, which are not called here (freeze a "
                "parameter by requires_grad_(False), a part of it by a mask in the forward pass)"
            )
            raise bad("model", expected, f"a hook on {name}")


class _UsedParameters(TorchFunctionMode):
    """Notes the parameters from which tensors are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        found = func(*args, **(kwargs or {}))
        if any(isinstance(one, Tensor) for one in tree_leaves(found)):
            given = tree_leaves((args, kwargs))
            self.used |= {id(one) for one in given if isinstance(one, nn.Parameter)}
        return found


def check_gradients_arrive(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise for trainable parameters that a pass uses, but from which it detaches its result.

    Weight decay would move them all the same. Parameters without a part in the pass are left
    alone, because a method may use them.

    Examples
    --------
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.body, self.top = nn.Linear(3, 2), nn.Linear(2, 2)
    ...
    ...     def forward(self, x):
    ...         with torch.no_grad():
    ...             z = self.body(x)
    ...         return self.top(z)
    >>> check_gradients_arrive(Net(), (3,))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: model: expected gradients to reach the parameters that it uses ...
    """
    own = {id(value): name for name, value in module.named_parameters() if value.requires_grad}
    if not own:
        return
    first = next(module.parameters())
    rows = torch.zeros(2, *shape, dtype=first.dtype, device=first.device)
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        with torch.enable_grad(), _UsedParameters() as watch:
            answer = module.eval()(rows)
    except Exception as error:
        wanted = "a network whose pass can be differentiated"
        raise bad("model", wanted, f"{type(error).__name__}: {error}") from error
    finally:
        for layer, training in modes:
            layer.training = training
    reached = _find_leaves(answer)
    blocked = [name for place, name in own.items() if place in watch.used - reached]
    if blocked:
        expected = (
            "gradients to reach the parameters that it uses (call requires_grad_(False) on those "
            "that are not to train, or take no_grad and detach out)"
        )
        more = f" and {len(blocked) - 5} more" if len(blocked) > 5 else ""
        raise bad("model", expected, f"none at {', '.join(blocked[:5])}{more}")


def _find_leaves(answer: Tensor) -> set[int]:
    """Return the ids of the tensors that the gradient of an answer would reach."""
    found: set[int] = set()
    waiting, met = [answer.grad_fn], set[Any]()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        waiting += [one for one, _ in node.next_functions]
    return found


def is_built(model: Any) -> bool:
    """Whether a model is a module with weights of its own, with which every seed begins.

    Examples
    --------
    >>> is_built(nn.Linear(2, 2)), is_built({"name": nn.Linear}), is_built("mlp")
    (True, False, False)
    """
    name = model.get("name") if isinstance(model, Mapping) else model
    return isinstance(load_maker(name) if is_user_network_name(name) else name, nn.Module)


def asks_for_classes(maker: Maker) -> bool:
    """Whether a class or factory wants to know the number of classes."""
    return not isinstance(maker, nn.Module) and any(
        one in _parameters(maker) for one in CLASS_COUNT_ARGUMENTS
    )


def _parameters(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker).parameters
    except (TypeError, ValueError):  # written in C: only the call itself can tell
        return {}


def _passes_shape(
    maker: Callable[..., Any], known: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> bool:
    """Whether the first argument of a call is to be the shape of a sample."""
    if any(name in known for name in SHAPE_ARGUMENTS):
        return False
    free = [one for one in known.values() if one.name not in (*options, *CLASS_COUNT_ARGUMENTS)
            and one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]  # fmt: skip
    if not free or next(iter(known.values())) is not free[0]:
        return any(one.default is one.empty and one.kind is not one.VAR_POSITIONAL for one in free)
    # a function is written for this place; a class with defaults stands on its own
    written = inspect.isroutine(maker) and not isinstance(maker, functools.partial)
    required = free[0].default is free[0].empty and free[0].kind is not free[0].VAR_POSITIONAL
    return required or written


def _check_call(
    maker: Callable[..., Any], first: tuple[Any, ...], given: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:  # fmt: skip
    """Raise for a class or factory that cannot be called with these arguments."""
    if not (known := _parameters(maker)):
        return
    signature = inspect.Signature(list(known.values()))
    try:
        signature.bind(*first, **given)
    except TypeError as error:
        form = ", ".join(["sample_shape", *(f"{name}=..." for name in options)])
        expected = f"a factory f({form}) -> torch.nn.Module"
        raise bad("model", expected, f"{_name(maker)}{signature}: {error}") from None


def _name(maker: Callable[..., Any]) -> str:
    return str(getattr(maker, "__qualname__", type(maker).__name__))
