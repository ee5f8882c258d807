"""One door to all networks: a name, a dict, a module or a factory in, a Classifier out."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from engram import keys
from engram.errors import bad, unknown, whole
from engram.models.adapter import adapt
from engram.models.alexnet import AlexNet
from engram.models.classifier import Classifier
from engram.models.cnn import CNN
from engram.models.frozen import Encoder, Features
from engram.models.gcn import GCN
from engram.models.heads import Cosine, Linear
from engram.models.lenet import LeNet
from engram.models.mlp import MLP
from engram.models.own import asks_for_classes, is_own_name, made, own_maker, own_options
from engram.models.recognise import dry_run, without_head
from engram.models.resnet import ResNet50, resnet18_slim, resnet32
from engram.models.stgcn import STGCN
from engram.models.timm_net import is_timm, timm_net
from engram.models.vgg import VGG11Slim
from engram.own_code import unknown_name

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
COMMON = ("head", "freeze")  # what every model may be told
TIMM_OPTIONS = ("img_size", "drop_rate", "drop_path_rate", "global_pool", "in_chans")
_HEADS: dict[str, Callable[..., nn.Module]] = {"linear": Linear, "cosine": Cosine}


def models() -> dict[str, str]:
    """Names of the models with one line on each.

    Examples
    --------
    >>> models()["cnn"]
    'Four 3x3 convolutions (32, 32, 64, 64) with two pooling layers and dropout.'
    """
    return {name: (inspect.getdoc(make) or "").split("\n")[0] for name, make in _MODELS.items()}


def model_options(name: Any) -> tuple[str, ...]:
    """What can be set of a model, besides the shape of its samples.

    Each may have a ``head``, and be frozen (``freeze``) below it.

    Examples
    --------
    >>> model_options("cnn")
    ('dropout', 'head', 'freeze')
    """
    if is_timm(name):
        return ("weights", "sha256", *COMMON, *TIMM_OPTIONS)
    if is_own_name(name) or not isinstance(name, str):
        return (*own_options(own_maker(name)), *COMMON, "ends")
    if name not in _MODELS:
        raise unknown_name("model", name, _MODELS)
    return (*tuple(inspect.signature(_MODELS[name]).parameters)[1:], *COMMON)


def model_defaults(name: str) -> dict[str, Any]:
    """What a model's options are where they are not given; the head is the method's then.

    Examples
    --------
    >>> model_defaults("mlp")["hidden"]
    (256, 256)
    """
    names = model_options(name)[: -len(COMMON)]
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
        A name of `models`, of timm (``timm/resnet18``) or of your own code (``module:Net``); a
        module [B, ...] -> [B, F], which is copied and keeps its weights; its class, or a factory
        ``f(sample_shape, **options) -> module``; or a dict with one of these as ``name`` and
        options, a ``head`` among them. A linear layer at the end of a network becomes the head; the
        option ``ends`` ("features" or "classes") says what it answers. With ``freeze`` the network
        begins with features, which its `Classifier.frozen` makes of inputs.
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
    freeze = False
    if isinstance(spec, Mapping) and "freeze" in spec:
        spec = dict(spec)
        freeze = check_freeze(spec.pop("freeze"))
    with _seeded(seed):
        backbone, width, bias = _backbone(spec, shape, classes, options)
        if not bias and check_head(head)["name"] == "linear":
            head = {"bias": False, **check_head(head)}  # as the user's network had it
        top = _make("head", head, _HEADS, (width, classes), {})
    getattr(top, "reset_columns")(seed)  # noqa: B009
    if freeze:
        return Classifier(Features(width), top, Encoder(backbone, width))
    return Classifier(backbone, top)


def check_freeze(freeze: Any) -> bool:
    """Whether a backbone is frozen, if that is what was said."""
    if not isinstance(freeze, bool):
        raise bad("model.freeze", "true or false", freeze)
    return freeze


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
        raise unknown_name(kind, name, makers)
    chosen = {**given, **more}
    valid = list(inspect.signature(makers[name]).parameters)[len(places) :]
    for option in chosen:
        if option not in valid:
            raise unknown(f"option of {kind} {name}", option, valid)
    return makers[name](*places, **chosen)


def _backbone(
    spec: Any, shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> tuple[nn.Module, int, bool]:
    """A backbone, its feature width, and whether its head is to have a bias."""
    ends = None
    if isinstance(spec, Mapping) and _is_foreign(spec.get("name")):
        options = {**{key: value for key, value in spec.items() if key != "name"}, **options}
        ends, spec = options.pop("ends", None), spec["name"]
    if is_timm(spec):
        module = timm_net(spec, shape, **options)
        width = dry_run(module, shape).width
        return _adapted(module, width, shape), width, True
    if isinstance(spec, (str, Mapping)) and not _is_foreign(spec):
        ours = _make("model", spec, _MODELS, (shape,), options)
        return ours, int(getattr(ours, "features")), True  # noqa: B009 - typed Any on purpose
    maker = own_maker(spec)
    module, asked = made(maker, shape, classes, options), asks_for_classes(maker)
    own, width, last = without_head(module, shape, classes, ends=ends, asked=asked)
    return _adapted(own, width, shape), width, last is None or last.bias is not None


def _is_foreign(name: Any) -> bool:
    """Whether a model is none of those of the library, by name or as an object."""
    return isinstance(name, nn.Module) or callable(name) or is_own_name(name) or is_timm(name)


def _adapted(module: nn.Module, width: int, shape: tuple[int, ...]) -> nn.Module:
    ours = adapt(module, shape)
    if not hasattr(ours, "features"):
        setattr(ours, "features", width)  # noqa: B010
    return ours


def _checked_shape(sample_shape: Any) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(size) for size in sample_shape)
    except TypeError:
        raise bad("sample_shape", "whole numbers such as (3, 32, 32)", sample_shape) from None
    if not shape or min(shape) < 1:
        raise bad("sample_shape", "whole numbers of at least 1", shape)
    return shape
