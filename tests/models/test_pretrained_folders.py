"""Networks from folders as transformers, sentence-transformers and open_clip save them, beside the
formulas of BERT, ViT and CLIP written out.
"""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import engram
from engram import keys, methods
from engram.deploy import Learner
from engram.errors import BadArgument
from engram.experiments.experiment_id import _describe_model
from engram.models import build
from engram.models.pretrained_folders import describe_start, folder_sha256
from engram.models.pretrained_weights import file_sha256
from tests.refusals import refuses

WIDTH, HIDDEN, DEPTH, HEADS = 8, 12, 2, 2
SIZES = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": DEPTH,
         "num_attention_heads": HEADS, "hidden_act": "gelu"}  # fmt: skip
BERT = {"model_type": "bert", "vocab_size": 30, "max_position_embeddings": 9,
        "type_vocab_size": 1, "layer_norm_eps": 1e-3, **SIZES}  # fmt: skip
VIT = {"model_type": "vit", "image_size": 8, "patch_size": 4, "layer_norm_eps": 1e-3, **SIZES}
CLIP = {
    "model_cfg": {
        "embed_dim": 5,
        "vision_cfg": {"image_size": 8, "patch_size": 4, "width": WIDTH, "layers": DEPTH,
                       "head_width": WIDTH // HEADS},
    },
    "preprocess_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]},
}  # fmt: skip


class Drawn(dict):
    """Tensors by name, which are drawn as they are added."""

    def add(self, name, *shape):
        self[name] = keys.normal(keys.fold(1, name), *shape).float() / 2

    def linear(self, name, out, inside):
        self.add(f"{name}.weight", out, inside)
        self.add(f"{name}.bias", out)

    def norm(self, name):
        self.add(f"{name}.weight", WIDTH)
        self.add(f"{name}.bias", WIDTH)


def bert_tensors():
    found = Drawn()
    for name, rows in (("word", 30), ("position", 9), ("token_type", 1)):
        found.add(f"embeddings.{name}_embeddings.weight", rows, WIDTH)
    found.norm("embeddings.LayerNorm")
    for block in range(DEPTH):
        at = f"encoder.layer.{block}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            found.linear(f"{at}attention.{part}", WIDTH, WIDTH)
        found.norm(f"{at}attention.output.LayerNorm")
        found.linear(f"{at}intermediate.dense", HIDDEN, WIDTH)
        found.linear(f"{at}output.dense", WIDTH, HIDDEN)
        found.norm(f"{at}output.LayerNorm")
    return found


def vit_tensors():
    found = Drawn()
    found.add("embeddings.cls_token", 1, 1, WIDTH)
    found.add("embeddings.position_embeddings", 1, 5, WIDTH)
    found.add("embeddings.patch_embeddings.projection.weight", WIDTH, 3, 4, 4)
    found.add("embeddings.patch_embeddings.projection.bias", WIDTH)
    for block in range(DEPTH):
        at = f"encoder.layer.{block}."
        for part in ("attention.query", "attention.key", "attention.value", "output.dense"):
            found.linear(f"{at}attention.{part}", WIDTH, WIDTH)
        found.norm(f"{at}layernorm_before")
        found.norm(f"{at}layernorm_after")
        found.linear(f"{at}intermediate.dense", HIDDEN, WIDTH)
        found.linear(f"{at}output.dense", WIDTH, HIDDEN)
    found.norm("layernorm")
    return found


def clip_tensors():
    found = Drawn()
    found.add("visual.class_embedding", WIDTH)
    found.add("visual.positional_embedding", 5, WIDTH)
    found.add("visual.conv1.weight", WIDTH, 3, 4, 4)
    found.norm("visual.ln_pre")
    found.norm("visual.ln_post")
    found.add("visual.proj", WIDTH, 5)
    for block in range(DEPTH):
        at = f"visual.transformer.resblocks.{block}."
        found.norm(f"{at}ln_1")
        found.norm(f"{at}ln_2")
        found.add(f"{at}attn.in_proj_weight", 3 * WIDTH, WIDTH)
        found.add(f"{at}attn.in_proj_bias", 3 * WIDTH)
        found.linear(f"{at}attn.out_proj", WIDTH, WIDTH)
        found.linear(f"{at}mlp.c_fc", 4 * WIDTH, WIDTH)
        found.linear(f"{at}mlp.c_proj", WIDTH, 4 * WIDTH)
    found.add("logit_scale", 1)
    return found


def write(folder, config, tensors, *, name="config.json", file="model.safetensors", **more):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(config))
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / file)
    for other, content in more.items():
        (folder / f"{other}.json").write_text(json.dumps(content))
    return {"name": "huggingface", "path": str(folder)}


# -- the formulas, for one row ---------------------------------------------------------------------


def linear(t, name, x):
    return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]


def norm(t, name, x, eps):
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return centred / spread * t[f"{name}.weight"] + t[f"{name}.bias"]


def attend(q, k, v):
    size, parts = WIDTH // HEADS, []
    for head in range(HEADS):
        own = slice(head * size, (head + 1) * size)
        weights = (q[:, own] @ k[:, own].T / size**0.5).softmax(-1)
        parts.append(weights @ v[:, own])
    return torch.cat(parts, -1)


def bert(t, ids):
    e = "embeddings."
    h = t[f"{e}word_embeddings.weight"][ids] + t[f"{e}token_type_embeddings.weight"][0]
    h = norm(t, f"{e}LayerNorm", h + t[f"{e}position_embeddings.weight"][: len(ids)], 1e-3)
    for block in range(DEPTH):
        at = f"encoder.layer.{block}."
        qkv = [linear(t, f"{at}attention.self.{one}", h) for one in ("query", "key", "value")]
        mixed = linear(t, f"{at}attention.output.dense", attend(*qkv))
        h = norm(t, f"{at}attention.output.LayerNorm", h + mixed, 1e-3)
        inside = linear(t, f"{at}output.dense", F.gelu(linear(t, f"{at}intermediate.dense", h)))
        h = norm(t, f"{at}output.LayerNorm", h + inside, 1e-3)
    return h


def patches(weight, image):
    squares = image.unfold(1, 4, 4).unfold(2, 4, 4)  # [3, 2, 2, 4, 4]
    return torch.einsum("chwij,kcij->hwk", squares, weight).flatten(0, 1)


def vit(t, image):
    e = "embeddings."
    tokens = patches(t[f"{e}patch_embeddings.projection.weight"], image)
    tokens = tokens + t[f"{e}patch_embeddings.projection.bias"]
    h = torch.cat([t[f"{e}cls_token"][0], tokens]) + t[f"{e}position_embeddings"][0]
    for block in range(DEPTH):
        at = f"encoder.layer.{block}."
        given = norm(t, f"{at}layernorm_before", h, 1e-3)
        names = [f"{at}attention.attention.{one}" for one in ("query", "key", "value")]
        mixed = attend(*(linear(t, name, given) for name in names))
        h = h + linear(t, f"{at}attention.output.dense", mixed)
        given = norm(t, f"{at}layernorm_after", h, 1e-3)
        inside = F.gelu(linear(t, f"{at}intermediate.dense", given))
        h = h + linear(t, f"{at}output.dense", inside)
    return norm(t, "layernorm", h, 1e-3)


def clip(t, image):
    tokens = patches(t["visual.conv1.weight"], image)
    h = torch.cat([t["visual.class_embedding"][None], tokens]) + t["visual.positional_embedding"]
    h = norm(t, "visual.ln_pre", h, 1e-5)
    for block in range(DEPTH):
        at = f"visual.transformer.resblocks.{block}."
        given = norm(t, f"{at}ln_1", h, 1e-5)
        joint = given @ t[f"{at}attn.in_proj_weight"].T + t[f"{at}attn.in_proj_bias"]
        h = h + linear(t, f"{at}attn.out_proj", attend(*joint.chunk(3, -1)))
        inside = F.gelu(linear(t, f"{at}mlp.c_fc", norm(t, f"{at}ln_2", h, 1e-5)))
        h = h + linear(t, f"{at}mlp.c_proj", inside)
    return norm(t, "visual.ln_post", h[:1], 1e-5)[0] @ t["visual.proj"]


# -- equal outputs ---------------------------------------------------------------------------------


def features(model, x):
    net = build(model, sample_shape=tuple(x.shape[1:]), classes=3, seed=0)
    return net.double().eval()(x).features


def doubled(tensors):
    return {name: value.double() for name, value in tensors.items()}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_bert_is_as_written_out(tmp_path, prefix):
    tensors = bert_tensors()
    model = write(tmp_path, BERT, {prefix + name: one for name, one in tensors.items()})
    x = torch.tensor([[3, 7, 9, 4, 0, 0], [5, 6, 0, 0, 0, 0]])
    rows = [bert(doubled(tensors), row[row > 0]) for row in x]
    found = features(model, x)
    assert torch.allclose(found, torch.stack([row.mean(0) for row in rows]), atol=1e-9)
    first = features({**model, "pooling": "token", "unit": True}, x)
    wanted = F.normalize(torch.stack([row[0] for row in rows]), dim=-1)
    assert torch.allclose(first, wanted, atol=1e-9)


def test_a_sentence_transformer_says_what_its_features_are(tmp_path):
    tensors = bert_tensors()
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    parts = [{"type": f"sentence_transformers.models.{one}"}
             for one in ("Transformer", "Pooling", "Normalize")]  # fmt: skip
    model = write(tmp_path, BERT, tensors, modules=parts)
    wanted = F.normalize(bert(doubled(tensors), torch.tensor([3, 4]))[0], dim=0)
    assert torch.allclose(features(model, torch.tensor([[3, 4, 0]]))[0], wanted, atol=1e-9)


@pytest.mark.parametrize("kind", ["huggingface", "open_clip"])
def test_networks_of_images_are_as_written_out(tmp_path, kind):
    if kind == "huggingface":
        tensors, formula, mean, std = vit_tensors(), vit, [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
        said = {"image_mean": mean, "image_std": std}
        model = write(tmp_path, VIT, tensors, preprocessor_config=said)
    else:
        tensors, formula, (mean, std) = clip_tensors(), clip, CLIP["preprocess_cfg"].values()
        write(tmp_path, CLIP, tensors, name="open_clip_config.json",
              file="open_clip_model.safetensors")  # fmt: skip
        model = {"name": "open_clip", "path": str(tmp_path)}
    x = keys.uniform(3, 2, 3, 8, 8)
    mean, std = (torch.tensor(one).double()[:, None, None] for one in (mean, std))
    rows = [formula(doubled(tensors), (one - mean) / std) for one in x]
    wanted = torch.stack([row if row.ndim == 1 else row[0] for row in rows])
    assert torch.allclose(features(model, x), wanted, atol=1e-6)
    small = features(model, x[..., ::2, ::2])  # resized to what the network was trained at
    assert small.shape == wanted.shape
    data = engram.Data.from_arrays(x.float().repeat(6, 1, 1, 1), [0, 1] * 6)
    stream = engram.class_incremental(data, classes_per_task=1)
    result = engram.run(stream, method=methods.L2P(pool=2, top=1, length=1), model=model, epochs=1)
    assert result.matrix.shape[1:] == (2, 2)


# -- identity and refusals -------------------------------------------------------------------------


def test_what_a_folder_holds_is_the_identity(tmp_path):
    first = write(tmp_path / "a", VIT, vit_tensors())
    same = write(tmp_path / "b", VIT, vit_tensors())
    other = write(tmp_path / "c", VIT, vit_tensors(), preprocessor_config={"image_mean": [0.0] * 3})
    known = _describe_model(first)
    assert known == _describe_model(same) != _describe_model(other)
    assert str(tmp_path) not in str(known)
    assert folder_sha256("huggingface", first["path"])[:8] in describe_start(first)


def test_what_does_not_fit_is_named(tmp_path):
    tensors = bert_tensors()
    wide = {**tensors, "embeddings.LayerNorm.bias": torch.zeros(WIDTH + 1)}
    model = write(tmp_path, BERT, wide)
    place = {"sample_shape": (6,), "classes": 3, "seed": 0}
    with pytest.raises(BadArgument, match=r"embeddings.LayerNorm.bias of shape \(8,\)"):
        build(model, **place)
    del wide["embeddings.LayerNorm.bias"]
    write(tmp_path, BERT, wide)
    with pytest.raises(BadArgument, match=r"a tensor called embeddings.LayerNorm.bias"):
        build(model, **place)
    write(tmp_path, BERT, tensors)
    file = tmp_path / "model.safetensors"
    assert build({**model, "sha256": file_sha256(str(file))}, **place).features == WIDTH
    with pytest.raises(BadArgument, match=r"the SHA-256 of model.safetensors"):
        build({**model, "sha256": "0" * 64}, **place)
    for wrong in ({"model_type": "gpt2"}, {"hidden_act": "relu"}, {"pad_token_id": 1}):
        write(tmp_path, {**BERT, **wrong}, tensors)
        with refuses("model.path"):
            build(model, **place)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadArgument, match=r"config.json in JSON"):
        build(model, **place)
    file.unlink()
    write(tmp_path / "empty", BERT, tensors)
    (tmp_path / "empty" / "model.safetensors").unlink()
    with pytest.raises(BadArgument, match=r"model.safetensors or pytorch_model.bin"):
        build({**model, "path": str(tmp_path / "empty")}, **place)


# -- learners of texts -----------------------------------------------------------------------------


def test_a_new_learner_learns_texts():
    model = {"name": "transformer", "vocabulary": 500, "width": 16, "depth": 1, "heads": 2}
    learner = Learner("NCM", model=model, detectors=(), device="cpu")
    learner.learn(["play a song", "sing a song"] * 4, ["music"] * 8)
    learner.learn(
        ["will it rain", "is it cold"] * 4, ["weather"] * 8, valid=(["rain"], ["weather"])
    )
    assert learner.predict(["play a song", "is it cold"]).tolist() == ["music", "weather"]
    with pytest.raises(BadArgument, match=r"a model of texts"):
        Learner("NCM", detectors=(), device="cpu").learn(["one", "two"], [0, 1])
