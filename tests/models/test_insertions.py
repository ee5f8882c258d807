"""Insertions into transformers of ours, of timm, and of Hugging Face's form."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import vmap

import engram
from engram import keys, methods
from engram.checks.toy_runs import ToyTransformer
from engram.data.dataset import Data
from engram.models import build
from engram.models.block_views import HuggingFaceEncoder, outline_blocks, view_blocks
from engram.models.insertions import (
    ROWS_TOGETHER,
    Bottleneck,
    Insertion,
    Insertions,
    LowRank,
    Prefix,
    compute_features,
)
from engram.models.published_weights import BERT_NAMES, rename
from engram.models.transformer import TextTransformer
from tests.plain import transformers as plain
from tests.refusals import refuses

VIT = {"name": "vit", "patch": 4, "width": 16, "depth": 3, "heads": 2}
WITH_PROMPTS = ("L2P", "DualPrompt", "CODAPrompt", "InfLoRA", "EASE")


def drawn(*shape):
    return keys.normal(keys.fold(3, *shape), *shape).double()


def empty(width, maps):
    """Insertions that add nothing."""
    nothing = torch.zeros(0, width).double()
    updates = {
        name: LowRank(drawn(2, inside), torch.zeros(out, 2).double())
        for name, (out, inside) in maps.items()
    }
    adapter = Bottleneck(drawn(3, width), drawn(3), torch.zeros(width, 3).double(),
                         torch.zeros(width).double())  # fmt: skip
    one = Insertion(Prefix(nothing, nothing), updates, adapter)
    return Insertions(nothing, dict.fromkeys(range(9), one))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (VIT, (3, 8, 8)),
        ({**VIT, "pooling": "mean"}, (3, 8, 8)),
        ({"name": "transformer", "vocabulary": 50, "width": 16, "depth": 2, "heads": 2}, (7,)),
        (
            {"name": "transformer", "vocabulary": 50, "width": 16, "depth": 2, "heads": 2,
             "norm": "post", "unit": True},
            (7,),
        ),
        (ToyTransformer, (5,)),
    ],
)  # fmt: skip
def test_what_adds_nothing_changes_nothing(model, shape):
    net = build(model, sample_shape=shape, classes=3, seed=0).double().eval()
    x = drawn(4, *shape)
    if shape == (7,):
        x = torch.randint(1, 50, (4, 7), generator=torch.Generator().manual_seed(0))
        x[0, 4:] = 0
    sizes = outline_blocks(net.backbone)
    for more in (Insertions(), empty(sizes.width, sizes.maps)):
        found = net.insert(x, more)
        assert torch.allclose(found.features, net(x).features, rtol=0, atol=1e-12)


def test_texts_of_similar_length_pass_together():
    text = {"name": "transformer", "vocabulary": 50, "width": 16, "depth": 2, "heads": 2}
    net = build(text, sample_shape=(9,), classes=3, seed=0).double().eval()
    rows = 2 * ROWS_TOGETHER + 3
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(1, 50, (rows, 9), generator=generator)
    x[torch.arange(9) >= torch.randint(1, 9, (rows, 1), generator=generator)] = 0
    shared, own = Prefix(drawn(2, 16), drawn(2, 16)), Prefix(drawn(rows, 3, 16), drawn(rows, 3, 16))
    tokens = drawn(rows, 4, 16)
    more = Insertions(tokens, {0: Insertion(shared), 1: Insertion(own)})
    found, moments = net.insert(x, more).features, net.input_moments(x, more)
    for row in range(rows):
        one = Insertion(Prefix(own.keys[row], own.values[row]))
        alone = Insertions(tokens[row], {0: Insertion(shared), 1: one})
        features = net.insert(x[row : row + 1], alone).features[0]
        assert torch.allclose(found[row], features, rtol=0, atol=1e-12)
        moments -= net.input_moments(x[row : row + 1], alone)
    assert moments.abs().max() < 1e-9


def test_all_kinds_are_as_written_out():
    net = build(ToyTransformer, sample_shape=(5,), classes=3, seed=0).double().eval()
    x, w = drawn(3, 5), plain.WIDTH
    tokens, pair = drawn(3, 2, w), (drawn(3, 4, w), drawn(4, 4, w)[:3])
    low, whole = LowRank(drawn(2, w) / 9, drawn(w, 2)), drawn(w, w) / 40
    adapter = Bottleneck(drawn(3, w) / 5, drawn(3), drawn(w, 3) / 3, drawn(w), 0.5)
    blocks = {
        0: Insertion(Prefix(*pair), {"query": low}),
        2: Insertion(updates={"value": (whole, low)}, adapter=adapter),
    }
    found = net.insert(x, Insertions(tokens, blocks), True).features

    def add(h):
        inner = (h @ adapter.down.T + adapter.down_bias).clamp(min=0)
        return (inner @ adapter.up.T + adapter.up_bias) / 2

    product = low.up @ low.down
    wanted = plain.features(
        x,
        lambda row: {
            "tokens": tokens[row], "prefixes": {0: (pair[0][row], pair[1][row])},
            "changes": {(0, "query"): product, (2, "value"): whole + product},
            "adapters": {2: add},
        },
        prompts=2,
    )  # fmt: skip
    assert torch.allclose(found, wanted, rtol=0, atol=1e-9)


def test_merged_updates_answer_as_unmerged_ones():
    net = build(VIT, sample_shape=(3, 8, 8), classes=3, seed=0).double().eval()
    x, sizes = drawn(4, 3, 8, 8), outline_blocks(net.backbone)
    low = {
        name: LowRank(drawn(2, inside), drawn(out, 2)) for name, (out, inside) in sizes.maps.items()
    }
    merged = {name: one.merge() for name, one in low.items()}
    both = [net.insert(x, Insertions(blocks={1: Insertion(updates=u)})) for u in (low, merged)]
    assert torch.allclose(both[0].features, both[1].features, rtol=0, atol=1e-9)
    with torch.no_grad():  # and as weights that have the update
        block = net.backbone.blocks[1]
        for name, change in merged.items():
            layer = getattr(block if name in ("widen", "narrow") else block.attention, name)
            layer.weight += change
    assert torch.allclose(net(x).features, both[0].features, rtol=0, atol=1e-9)


def test_insertions_are_mapped_over_runs():
    net = build(VIT, sample_shape=(3, 8, 8), classes=3, seed=0).double().eval()
    x, prompts = drawn(2, 4, 3, 8, 8), drawn(2, 5, 16)
    found = vmap(lambda x, p: net.insert(x, Insertions(p)).logits)(x, prompts)
    for run in range(2):
        alone = net.insert(x[run], Insertions(prompts[run])).logits
        assert torch.allclose(found[run], alone, rtol=0, atol=1e-12)


def test_other_networks_are_refused():
    net = build("mlp", sample_shape=(4,), classes=2, seed=0)
    with refuses("model"):
        net.insert(torch.zeros(2, 4), Insertions())


# -- Hugging Face's form: the same weights in modules with those names -----------------------------
def bert_like(ours):
    """Modules with the names and forms of BERT, with the weights of ours."""
    width, own = ours.features, ours.blocks[0]

    class Embeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.word_embeddings = nn.Embedding(*ours.words.weight.shape)
            self.position_embeddings = nn.Embedding(*ours.positions.weight.shape)
            self.token_type_embeddings = nn.Embedding(*ours.types.weight.shape)
            self.LayerNorm = nn.LayerNorm(width, 1e-12)

        def forward(self, ids):
            places = self.position_embeddings.weight[: ids.shape[-1]]
            first = self.token_type_embeddings.weight[0]
            return self.LayerNorm(self.word_embeddings(ids) + places + first)

    def end(given):
        found = nn.Module()
        found.dense, found.LayerNorm = nn.Linear(given, width), nn.LayerNorm(width, 1e-12)
        found.dropout = nn.Dropout(0.0)
        return found

    def layer():
        found, attention = nn.Module(), nn.Module()
        attention.self = nn.Module()
        for name in ("query", "key", "value"):
            setattr(attention.self, name, nn.Linear(width, width))
        attention.output = end(width)
        found.attention, found.intermediate = attention, nn.Module()
        found.intermediate.dense = nn.Linear(width, own.widen.out_features)
        found.output = end(own.widen.out_features)
        return found

    model = nn.Module()
    model.embeddings, model.encoder = Embeddings(), nn.Module()
    model.encoder.layer = nn.ModuleList(layer() for _ in ours.blocks)
    model.config = SimpleNamespace(
        hidden_size=width, num_attention_heads=own.attention.heads, hidden_act="gelu"
    )
    model.load_state_dict({rename(k, BERT_NAMES): v for k, v in ours.state_dict().items()})
    return model


def test_the_form_of_hugging_face_answers_as_ours():
    ours = TextTransformer((6,), vocabulary=40, width=16, depth=2, heads=2, norm="post")
    theirs = HuggingFaceEncoder(bert_like(ours)).double().eval()
    ours = ours.double().eval()
    ids = torch.tensor([[5, 9, 2, 0, 0, 0], [7, 1, 7, 3, 7, 7]])
    assert torch.allclose(theirs(ids), ours(ids), rtol=0, atol=1e-12)
    more = Insertions(
        drawn(2, 16),
        {
            1: Insertion(
                Prefix(drawn(3, 16), drawn(3, 16)),
                {"widen": LowRank(drawn(2, 16), drawn(64, 2))},
                Bottleneck(drawn(3, 16), drawn(3), drawn(16, 3), drawn(16)),
            )
        },
    )
    for at in (False, True):
        both = [compute_features(view_blocks(m), ids, more, at_prompts=at) for m in (theirs, ours)]
        assert torch.allclose(*both, rtol=0, atol=1e-12)
    with refuses("model"):
        HuggingFaceEncoder(nn.Linear(2, 2))


# -- timm ------------------------------------------------------------------------------------------
TIMM = {"name": "timm/test_vit", "img_size": 32}


@pytest.fixture
def timm_vit():
    if missing := [name for name in ("timm", "torchvision") if find_spec(name) is None]:
        pytest.skip(f"without {missing[0]}")
    return build(TIMM, sample_shape=(3, 32, 32), classes=4, seed=0).double().eval()


def test_timm_answers_the_same(timm_vit):
    x, sizes = drawn(2, 3, 32, 32), outline_blocks(timm_vit.backbone)
    for more in (Insertions(), empty(sizes.width, sizes.maps)):
        found = timm_vit.insert(x, more).features
        assert torch.allclose(found, timm_vit(x).features, rtol=0, atol=1e-9)
    merged = LowRank(drawn(2, sizes.width), drawn(sizes.width, 2)).merge()
    updated = timm_vit.insert(x, Insertions(blocks={1: Insertion(updates={"key": merged})}))
    with torch.no_grad():
        attention = timm_vit.backbone.blocks[1].attn
        attention.qkv.weight[sizes.width : 2 * sizes.width] += merged
    assert torch.allclose(updated.features, timm_vit(x).features, rtol=0, atol=1e-9)


def test_timm_behind_resized_images_answers_the_same(timm_vit):
    resized = {"name": "timm/test_vit", "size": 160}
    net = build(resized, sample_shape=(1, 28, 28), classes=4, seed=0).double().eval()
    x, sizes = drawn(2, 1, 28, 28), outline_blocks(net.backbone)
    assert sizes == outline_blocks(timm_vit.backbone)
    for more in (Insertions(), empty(sizes.width, sizes.maps)):
        found = net.insert(x, more).features
        assert torch.allclose(found, net(x).features, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", WITH_PROMPTS)
def test_timm_runs_every_method(timm_vit, name):
    x = (drawn(24, 3, 32, 32) * 40 + 128).clamp(0, 255).to(torch.uint8)
    stream = engram.class_incremental(
        Data.from_arrays(x, torch.arange(24) % 4, test=(x[:8], torch.arange(8) % 4))
    )
    found = engram.run(
        stream, method=getattr(methods, name)(), model=TIMM, epochs=1, batch_size=6, device="cpu"
    )
    assert found.matrix.shape == (1, 2, 2)
    assert (found.matrix[0].diagonal() >= 0).all()
