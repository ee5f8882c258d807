"""One door to all networks: a name, a dict, a module or a factory in, a Classifier out."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from engram import keys
from engram.errors import bad, unknown, whole
from engram.models.adapter import adapt
from engram.models.alexnet import AlexNet
from engram.models.classifier import Classifier
from engram.models.cnn import CNN
from engram.models.gcn import GCN
from engram.models.heads import Cosine, Linear
from engram.models.lenet import LeNet
from engram.models.mlp import MLP
from engram.models.resnet import ResNet50, resnet18_slim, resnet32
from engram.models.stgcn import STGCN
from engram.models.vgg import VGG11Slim

Spec = str | Mapping[str, Any] | nn.Module | Callable[..., nn.Module]

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "lenet": LeNet,
    "cnn": CNN,
    "resnet32": resnet32,
    "resnet18_slim": resnet18_slim,
    "resnet50": ResNet50,
    "vgg11_slim": VGG11Slim,
    "alexnet": AlexNet,
    "gcn": GCN,
    "stgcn": STGCN,
}
_HEADS: dict[str, Callable[..., nn.Module]] = {"linear": Linear, "cosine": Cosine}


def models() -> dict[str, str]:
    """Names of the models with one line on each.

    Examples
    --------
    >>> models()["cnn"]
    'Four 3x3 convolutions (32, 32, 64, 64) with two poolings and dropout.'
    """
    return {name: (inspect.getdoc(make) or "").split("\n")[0] for name, make in _MODELS.items()}


def model_options(name: str) -> tuple[str, ...]:
    """What can be set of a model, besides the shape of its samples; each may have a ``head``.

    Examples
    --------
    >>> model_options("cnn")
    ('dropout', 'head')
    """
    if name not in _MODELS:
        raise unknown("model", name, _MODELS)
    return (*tuple(inspect.signature(_MODELS[name]).parameters)[1:], "head")


def model_defaults(name: str) -> dict[str, Any]:
    """What a model's options are where they are not given; the head is the method's then.

    Examples
    --------
    >>> model_defaults("mlp")["hidden"]
    (256, 256)
    """
    names = model_options(name)[:-1]
    given = inspect.signature(_MODELS[name]).parameters
    return {option: given[option].default for option in names}


def build(
    spec: Spec,
    *,
    sample_shape: tuple[int, ...],
    classes: int,
    seed: int,
    head: str | Mapping[str, Any] = "linear",
    **options: Any,
) -> Classifier:
    """A classifier for samples of one shape, the same weights for the same seed.

    Parameters
    ----------
    spec
        A name of `models`; a dict with that name and options, a ``head`` among them; a module
        [B, ...] -> [B, F], which is copied and keeps its weights; or a factory
        ``f(sample_shape, **options) -> module``.
    classes
        How many classes the head has room for.
    seed
        Decides the initial weights. The global generator is left alone.
    head
        "linear", "cosine", or a dict such as ``{"name": "cosine", "scale": 10}``: what the method
        needs. A model's own head must be of that kind, unless any will do ("linear").

    Examples
    --------
    >>> net = build("mlp", sample_shape=(1, 8, 8), classes=10, seed=0, hidden=(32,), split=0)
    >>> net(torch.zeros(5, 1, 8, 8)).logits.shape
    torch.Size([5, 10])
    """
    shape = _checked_shape(sample_shape)
    whole("classes", classes, 1)
    if isinstance(spec, Mapping) and "head" in spec:
        spec = dict(spec)
        head = _chosen_head(head, spec.pop("head"))
    with _seeded(seed):
        if isinstance(spec, (str, Mapping)):
            backbone = _make("model", spec, _MODELS, (shape,), options)
            width = int(getattr(backbone, "features"))  # noqa: B009 - typed Any on purpose
        else:
            backbone, width = _adapted(spec, shape, options)
        top = _make("head", head, _HEADS, (width, classes), {})
    getattr(top, "reset_columns")(seed)  # noqa: B009
    return Classifier(backbone, top)


def check_head(head: Any) -> dict[str, Any]:
    """A head as a mapping with a name and options, after a look at them.

    Examples
    --------
    >>> check_head("cosine"), check_head({"name": "cosine", "scale": 10})
    ({'name': 'cosine'}, {'name': 'cosine', 'scale': 10})
    """
    given = {"name": head} if isinstance(head, str) else head
    if not isinstance(given, Mapping) or "name" not in given:
        raise bad("head", "the name of a head, or a mapping with a name", head)
    name, known = given["name"], list(_HEADS)
    if not isinstance(name, str) or name not in _HEADS:
        raise unknown("head", name, known)
    valid = list(inspect.signature(_HEADS[name]).parameters)[2:]
    for option, value in given.items():
        if option != "name" and option not in valid:
            raise unknown(f"option of head {name}", option, valid)
        if option != "name" and not isinstance(value, (bool, int, float)):
            raise bad(f"head.{option}", "a number or a truth value", value)
    return dict(given)


def _chosen_head(needed: Any, own: Any) -> dict[str, Any]:
    """The model's own head, refused where the method needs another one."""
    method, model = check_head(needed), check_head(own)
    if method["name"] not in ("linear", model["name"]):
        wanted = f"{method['name']}, which the method needs"
        raise bad("model.head", wanted, model["name"])
    return {**method, **model} if method["name"] == model["name"] else model


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Initialisers draw from (seed, "init"); nobody else's generator moves, on no device."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(keys.torch_seed(keys.fold(seed, "init")))
        yield


def _make(
    kind: str,
    spec: str | Mapping[str, Any],
    makers: Mapping[str, Callable[..., nn.Module]],
    places: tuple[Any, ...],
    more: Mapping[str, Any],
) -> nn.Module:
    """Call the maker that `spec` names, after checking name and options."""
    given = {"name": spec} if isinstance(spec, str) else dict(spec)
    if "name" not in given:
        raise bad(kind, "a dict with a 'name'", spec)
    name = given.pop("name")
    if not isinstance(name, str) or name not in makers:
        raise unknown(kind, name, makers)
    chosen = {**given, **more}
    valid = list(inspect.signature(makers[name]).parameters)[len(places) :]
    for option in chosen:
        if option not in valid:
            raise unknown(f"option of {kind} {name}", option, valid)
    return makers[name](*places, **chosen)


def _adapted(
    spec: nn.Module | Callable[..., nn.Module], shape: tuple[int, ...], options: dict[str, Any]
) -> tuple[nn.Module, int]:
    """A user's backbone made ours, and its feature width."""
    if isinstance(spec, nn.Module):
        if options:
            raise bad("options", "none for a module that is built already", sorted(options))
        module = copy.deepcopy(spec)  # the dry run sizes lazy layers, the user's stay as they are
    elif callable(spec):
        _check_call(spec, shape, options)
        module = spec(shape, **options)
        if not isinstance(module, nn.Module):
            raise bad("model", "a factory that returns a torch.nn.Module", module)
    else:
        raise bad("model", "a name, a dict, a torch.nn.Module or a factory", spec)
    width = _width(module, shape)
    ours = adapt(module, shape)
    if not hasattr(ours, "features"):
        setattr(ours, "features", width)  # noqa: B010
    return ours, width


def _check_call(
    factory: Callable[..., Any], shape: tuple[int, ...], options: Mapping[str, Any]
) -> None:
    """Complain about a factory that cannot be called with the shape of a sample."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # written in C: only the call itself can tell
        return
    try:
        signature.bind(shape, **options)
    except TypeError as error:
        form = ", ".join(["sample_shape", *(f"{name}=..." for name in options)])
        name = getattr(factory, "__qualname__", type(factory).__name__)
        expected = f"a factory f({form}) -> torch.nn.Module"
        raise bad("model", expected, f"{name}{signature}: {error}") from None


@torch.no_grad()
def _width(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Feature width by a dry run on zeros, which also sizes lazy layers."""
    first = next(module.parameters(), torch.zeros(()))
    lazy = isinstance(first, nn.parameter.UninitializedParameter)
    rows = torch.zeros(2, *shape, dtype=torch.float32 if lazy else first.dtype, device=first.device)
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        found = module.eval()(rows)
    except Exception as error:
        raise bad("model", f"a backbone for samples of shape {shape}", str(error)) from error
    finally:
        for layer, training in modes:
            layer.training = training
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise bad("model", "a backbone that answers features [B, F]", what)
    return int(found.shape[1])


def _checked_shape(sample_shape: Any) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(size) for size in sample_shape)
    except TypeError:
        raise bad("sample_shape", "whole numbers such as (3, 32, 32)", sample_shape) from None
    if not shape or min(shape) < 1:
        raise bad("sample_shape", "whole numbers of at least 1", shape)
    return shape
