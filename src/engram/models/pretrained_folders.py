"""Networks from folders that Hugging Face's transformers and sentence-transformers, or open_clip,
have saved: read from their files, into transformers of ours. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.data.texts.tokenization import HASHED_IDS
from engram.errors import bad, check_choice
from engram.models.image_input import ImageInput
from engram.models.pretrained_weights import file_sha256, read_weights
from engram.models.published_weights import (
    BERT_NAMES,
    describe_starting_weights,
    published_sha256,
    rename,
)
from engram.models.transformer import PADDING, POOLINGS, TextTransformer, VisionTransformer

FOLDERS = ("huggingface", "open_clip")  # names of models that are read from a folder
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_CLIP_WEIGHTS = (
    "open_clip_model.safetensors", "open_clip_pytorch_model.bin", "model.safetensors",
)  # fmt: skip
_CONFIG, _CLIP_CONFIG, _IMAGES = "config.json", "open_clip_config.json", "preprocessor_config.json"
_MODULES, _POOLING = "modules.json", "1_Pooling/config.json"  # of sentence-transformers
TOKENS = "tokenizer.json"
_HALF = (0.5, 0.5, 0.5)
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)  # where a folder of open_clip does not say
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# names of a `VisionTransformer` in a file of ViT's form, as Hugging Face writes it
VIT_NAMES = {
    "patches.": "embeddings.patch_embeddings.projection.",
    "token.weight": "embeddings.cls_token",
    "positions.weight": "embeddings.position_embeddings",
    "last_norm.": "layernorm.",
    "blocks.": "encoder.layer.",
    ".attention.query.": ".attention.attention.query.",
    ".attention.key.": ".attention.attention.key.",
    ".attention.value.": ".attention.attention.value.",
    ".attention.output.": ".attention.output.dense.",
    ".attention_norm.": ".layernorm_before.",
    ".widen.": ".intermediate.dense.",
    ".narrow.": ".output.dense.",
    ".feed_forward_norm.": ".layernorm_after.",
}
CLIP_NAMES = {
    "patches.": "visual.conv1.",
    "token.weight": "visual.class_embedding",
    "positions.weight": "visual.positional_embedding",
    "first_norm.": "visual.ln_pre.",
    "last_norm.": "visual.ln_post.",
    "blocks.": "visual.transformer.resblocks.",
    ".attention.output.": ".attn.out_proj.",
    ".attention_norm.": ".ln_1.",
    ".widen.": ".mlp.c_fc.",
    ".narrow.": ".mlp.c_proj.",
    ".feed_forward_norm.": ".ln_2.",
}


def huggingface(
    sample_shape: tuple[int, ...], *, path: str = "", pooling: str | None = None,
    unit: bool | None = None, sha256: str | None = None,
) -> nn.Module:  # fmt: skip
    """A BERT or ViT from a folder of Hugging Face's transformers, or of sentence-transformers.

    The package transformers is not needed. Texts must have the tokens of the folder's
    ``tokenizer.json``. Images are resized and normalised as the folder says.

    Parameters
    ----------
    path
        Folder with ``config.json`` and ``model.safetensors`` (or ``pytorch_model.bin``).
    pooling
        Features are the first ``token`` (that of the class) or the ``mean`` of the tokens. Default:
        what a sentence transformer's folder says, else the mean of texts and the token of images.
    unit
        Divide features of texts by their length; by default if a sentence transformer's does so.
    sha256
        Checksum that the file of weights must have.

    Examples
    --------
    >>> huggingface((16,), path="bert-of-mine")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: model.path: expected a folder with config.json, got 'bert-of-mine'
    """
    folder = _find_folder(path, _CONFIG)
    config = _read_json(folder / _CONFIG)
    kind = config.get("model_type")
    if kind not in ("bert", "vit"):
        raise bad("model.path", "a folder of a model of type bert or vit", kind)
    if config.get("hidden_act", "gelu") != "gelu":
        raise bad("model.path", "a model with hidden_act gelu", config["hidden_act"])
    if pooling is not None:
        check_choice("model.pooling", pooling, POOLINGS)
    given = _read_tensors(folder, _WEIGHTS, sha256)
    if kind == "bert":
        return _make_bert(folder, config, given, sample_shape, pooling, unit)
    if unit is not None:
        raise bad("model.unit", "nothing for a network of images", unit)
    look, shape = _look_at_images(folder, sample_shape, int(_need(config, "image_size")))
    net = VisionTransformer(
        shape, patch=int(_need(config, "patch_size")), width=int(_need(config, "hidden_size")),
        depth=int(_need(config, "num_hidden_layers")),
        heads=int(_need(config, "num_attention_heads")),
        hidden=int(_need(config, "intermediate_size")), pooling=pooling or "token",
    )  # fmt: skip
    if not config.get("qkv_bias", True):
        raise bad("model.path", "a ViT with qkv_bias", False)
    _set_eps(net, float(config.get("layer_norm_eps", 1e-12)))
    _fill(net, given, VIT_NAMES, _prefix(given, "vit."), folder.name)
    return _behind(look, net)


def open_clip(
    sample_shape: tuple[int, ...], *, path: str = "", sha256: str | None = None
) -> nn.Module:
    """The image tower of a CLIP model, a ViT, from a folder of open_clip.

    The package open_clip is not needed. Images are resized and normalised as the folder says;
    features are the projected ones that are compared with texts, not divided by their length.

    Parameters
    ----------
    path
        Folder with ``open_clip_config.json`` and ``open_clip_model.safetensors``.
    sha256
        Checksum that the file of weights must have.

    Examples
    --------
    >>> open_clip((3, 32, 32), path="clip")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: model.path: expected a folder with open_clip_config.json, got 'clip'
    """
    folder = _find_folder(path, _CLIP_CONFIG)
    config = _read_json(folder / _CLIP_CONFIG)
    about: Any = _need(config, "model_cfg")
    vision: Any = _need(about, "vision_cfg")
    if "width" not in vision or "patch_size" not in vision:
        raise bad("model.path", "a CLIP whose image tower is a ViT of open_clip", sorted(vision))
    if about.get("quick_gelu") or vision.get("timm_model_name"):
        raise bad("model.path", "a ViT of open_clip with gelu", "quick_gelu, or one of timm")
    given = _read_tensors(folder, _CLIP_WEIGHTS, sha256)
    size, width = int(vision.get("image_size", 224)), int(vision["width"])
    said = config.get("preprocess_cfg", {})
    mean, std = said.get("mean", _CLIP_MEAN), said.get("std", _CLIP_STD)
    look = ImageInput("open_clip", sample_shape, size=size, mean=mean, std=std)
    net = _ClipTower(
        (3, size, size), features=int(_need(about, "embed_dim")), width=width,
        patch=int(vision["patch_size"]), depth=int(vision.get("layers", 12)),
        heads=width // int(vision.get("head_width", 64)),
        hidden=int(width * float(vision.get("mlp_ratio", 4.0))),
    )  # fmt: skip
    _fill(net, _split_maps(given, width), CLIP_NAMES, "", folder.name)
    return _behind(look, net)


class _ClipTower(VisionTransformer):
    """A ViT with a norm before its blocks, and a projection at the end."""

    def __init__(self, shape: tuple[int, ...], *, features: int, width: int, **sizes: Any) -> None:
        super().__init__(shape, width=width, **sizes)
        patch = int(sizes["patch"])
        self.patches = nn.Conv2d(3, width, patch, patch, bias=False)
        self.first_norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, features, bias=False)
        self.root_modules = ("first_norm", *self.root_modules)
        self.features = features
        _set_eps(self, 1e-5)

    def embed(self, x: Tensor) -> tuple[Tensor, None]:
        h, _ = super().embed(x)
        return self.first_norm(h), None

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        return self.finish_mean(super().pool(h, mask))

    def finish_mean(self, mean: Tensor) -> Tensor:
        found: Tensor = self.projection(mean)
        return found


def find_tokens(path: str) -> str | None:
    """Return the path of the ``tokenizer.json`` of a folder, if it has one."""
    file = Path(path).expanduser() / TOKENS
    return str(file) if file.is_file() else None


def folder_sha256(name: str, path: str) -> str:
    """Return a checksum of all that a model is made of: weights and the files that describe it."""
    config = _CONFIG if name == "huggingface" else _CLIP_CONFIG
    folder = _find_folder(path, config)
    weights = _find_weights(folder, _WEIGHTS if name == "huggingface" else _CLIP_WEIGHTS)
    digest = hashlib.sha256()
    for file in (weights, *(folder / one for one in (config, _IMAGES, _MODULES, _POOLING))):
        digest.update(file_sha256(str(file)).encode() if file.is_file() else b"none")
    return digest.hexdigest()


def weights_sha256(model: Any) -> str | None:
    """Return the checksum of what a model begins with, from a package or a folder; None of others.

    Examples
    --------
    >>> weights_sha256({"name": "mobilenet_v2", "pretrained": True})[:8], weights_sha256("mlp")
    ('2f518e77', None)
    """
    if isinstance(model, Mapping) and model.get("name") in FOLDERS:
        return folder_sha256(str(model["name"]), model.get("path", ""))
    return published_sha256(model)


def describe_start(model: Any) -> str:
    """Where a model's first weights come from, in words; nothing where there is no choice."""
    if isinstance(model, Mapping) and model.get("name") in FOLDERS:
        name, place = str(model["name"]), str(model.get("path", ""))
        folder = Path(place).expanduser().resolve()
        there = folder.is_dir()  # not where results of another machine are looked at
        known = f" (SHA-256 {folder_sha256(name, place)[:8]}...)" if there else ""
        return f"{name} starts from the weights of the folder {folder.name}{known}"
    return describe_starting_weights(model)


def choose_tokenizer(model: Any) -> dict[str, Any] | None:
    """Return the tokeniser that goes with a model of texts; None for other models.

    Examples
    --------
    >>> choose_tokenizer({"name": "minilm", "pretrained": True}), choose_tokenizer("mlp")
    ({'name': 'minilm'}, None)
    """
    given: Mapping[str, Any] = model if isinstance(model, Mapping) else {"name": model}
    if given.get("name") == "minilm" and given.get("pretrained"):
        return {"name": "minilm"}
    if given.get("name") == "huggingface":
        found = find_tokens(str(given.get("path", "")))
        return None if found is None else {"name": found}
    if given.get("name") not in ("transformer", "minilm"):
        return None
    return {"name": "words", "vocabulary": int(given.get("vocabulary", HASHED_IDS))}


# -- texts -----------------------------------------------------------------------------------------


def _make_bert(
    folder: Path, config: Mapping[str, Any], given: Mapping[str, Tensor], shape: tuple[int, ...],
    pooling: str | None, unit: bool | None,
) -> TextTransformer:  # fmt: skip
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise bad("model.path", "a BERT with absolute positions", config["position_embedding_type"])
    if config.get("pad_token_id", PADDING) != PADDING:
        raise bad("model.path", f"a BERT whose padding is token {PADDING}", config["pad_token_id"])
    usual, scaled = _sentence_settings(folder)
    net = TextTransformer(
        shape, vocabulary=int(_need(config, "vocab_size")), norm="post",
        width=int(_need(config, "hidden_size")), depth=int(_need(config, "num_hidden_layers")),
        heads=int(_need(config, "num_attention_heads")),
        hidden=int(_need(config, "intermediate_size")),
        positions=int(_need(config, "max_position_embeddings")),
        pooling=pooling or usual, unit=scaled if unit is None else unit,
    )  # fmt: skip
    net.types = nn.Embedding(int(config.get("type_vocab_size", 2)), net.features)
    _set_eps(net, float(config.get("layer_norm_eps", 1e-12)))
    _fill(net, given, BERT_NAMES, _prefix(given, "bert."), folder.name)
    net.tokenizer = find_tokens(str(folder))
    return net


def _sentence_settings(folder: Path) -> tuple[str, bool]:
    """Return pooling and normalisation of a sentence transformer; the mean as it is, of others."""
    if not (folder / _MODULES).is_file():
        return "mean", False
    parts = [str(one.get("type", "")).rpartition(".")[2] for one in _read_json(folder / _MODULES)]
    for part in parts:
        if part not in ("Transformer", "Pooling", "Normalize"):
            expected = f"Transformer, Pooling and Normalize in {_MODULES}"
            raise bad("model.path", expected, part)
    pools: Any = _read_json(folder / _POOLING) if (folder / _POOLING).is_file() else {}
    by = [name for name, on in pools.items() if name.startswith("pooling_mode_") and on is True]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "token"}
    if len(by) > 1 or any(one not in known for one in by):
        raise bad("model.path", f"one of {', '.join(known)} in {_POOLING}", by)
    return known[by[0]] if by else "mean", "Normalize" in parts


# -- images ----------------------------------------------------------------------------------------


def _look_at_images(
    folder: Path, shape: tuple[int, ...], size: int
) -> tuple[ImageInput, tuple[int, ...]]:
    said: Any = _read_json(folder / _IMAGES) if (folder / _IMAGES).is_file() else {}
    mean, std = (said.get(name, _HALF) for name in ("image_mean", "image_std"))
    return ImageInput("huggingface", shape, size=size, mean=mean, std=std), (3, size, size)


def _behind(look: ImageInput, net: VisionTransformer) -> nn.Module:
    both = nn.Sequential(look, net)
    both.features = net.features  # type: ignore[assignment]
    return both


def _split_maps(given: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Split one map to query, key and value into three; name and shape the rest as ours are."""
    found: dict[str, Tensor] = {}
    for name, value in given.items():
        front, _, last = name.rpartition(".")
        if last.startswith("in_proj_") and len(value) == 3 * width:
            for part, own in zip(("query", "key", "value"), value.chunk(3), strict=True):
                block = front.removesuffix(".attn")
                found[f"{block}.attention.{part}.{last.removeprefix('in_proj_')}"] = own
        elif name == "visual.proj":
            found["projection.weight"] = value.T
        else:
            found[name] = value
    return found


# -- files -----------------------------------------------------------------------------------------


def _find_folder(path: Any, config: str) -> Path:
    if not isinstance(path, str) or not path or not (Path(path).expanduser() / config).is_file():
        raise bad("model.path", f"a folder with {config}", path)
    return Path(path).expanduser()


def _find_weights(folder: Path, names: tuple[str, ...]) -> Path:
    found = next((folder / one for one in names if (folder / one).is_file()), None)
    if found is None:
        there = sorted(one.name for one in folder.iterdir())[:8]
        raise bad("model.path", f"a folder with {' or '.join(names)}", there)
    return found


def _read_tensors(folder: Path, names: tuple[str, ...], sha256: str | None) -> Mapping[str, Tensor]:
    file = str(_find_weights(folder, names))
    return read_weights(file, sha256 or file_sha256(file), "model.path", "model.sha256")


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise bad("model.path", f"{file.name} in JSON", str(error)[:100]) from None


def _need(config: Mapping[str, Any], name: str) -> Any:
    if name not in config:
        raise bad("model.path", f"{name} in the folder's configuration", sorted(config)[:8])
    return config[name]


def _prefix(given: Mapping[str, Tensor], prefix: str) -> str:
    """Return what a model with a head of its own has before all names of its encoder."""
    return prefix if any(name.startswith(prefix) for name in given) else ""


def _set_eps(net: nn.Module, eps: float) -> None:
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps


def _fill(
    net: nn.Module, given: Mapping[str, Tensor], names: Mapping[str, str], prefix: str, folder: str
) -> None:
    """Write tensors of a file into all of a network."""
    with torch.no_grad():
        for mine, value in net.state_dict().items():
            there = prefix + rename(mine, names)
            if there not in given:
                raise bad("model.path", f"a tensor called {there} in {folder}", sorted(given)[:5])
            found = given[there]
            # one class token, and one set of positions, may have further axes of length 1
            if found.squeeze().shape != value.squeeze().shape:
                expected = f"{there} of shape {tuple(value.shape)} in {folder}"
                raise bad("model.path", expected, tuple(found.shape))
            value.copy_(found.reshape(value.shape))
