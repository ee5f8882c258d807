"""Transformers of known libraries as `Blocks`: ours, timm's `VisionTransformer` and, wrapped in
`HuggingFaceEncoder`, those of Hugging Face that are built like BERT or ViT.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.errors import bad, check_choice
from engram.models.forward_pass import can_be_read
from engram.models.image_input import ImageInput
from engram.models.insertions import Blocks, Insertion, update_map
from engram.models.transformer import PADDING, TextTransformer, TokenNetwork, TransformerBlock
from engram.streams.stream_outline import BlockOutline

ATTENTION_MAPS = ("query", "key", "value", "output")


def view_blocks(backbone: Any) -> Blocks | None:
    """Return a backbone as `Blocks`; None if it is no transformer that is known.

    Examples
    --------
    >>> from engram.models.transformer import TextTransformer
    >>> found = view_blocks(TextTransformer((12,), width=16, depth=3, heads=2))
    >>> found.depth, found.width
    (3, 16)
    >>> view_blocks(nn.Linear(2, 2)) is None
    True
    """
    if isinstance(backbone, TokenNetwork):
        return OwnBlocks(backbone)
    if hasattr(backbone, "insertable_blocks"):
        found: Blocks = backbone.insertable_blocks()
        return found
    if isinstance(backbone, nn.Sequential) and isinstance(backbone[0], ImageInput):
        behind = view_blocks(backbone[1])
        return None if behind is None else BlocksBehind(backbone[0], behind)
    return TimmBlocks(backbone) if _is_timm_transformer(backbone) else None


def need_blocks(backbone: Any, method: str) -> Blocks:
    """Return a backbone as `Blocks`; raise, in the name of a method, if it is no transformer."""
    found = view_blocks(backbone)
    if found is None:
        kind = type(backbone).__name__
        got = "a frozen encoder (leave out freeze)" if kind == "PrecomputedFeatures" else kind
        expected = f"a transformer, into which {method} inserts (minilm, vit, timm/vit_...)"
        raise bad("model", expected, got)
    return found


def outline_blocks(backbone: Any) -> BlockOutline | None:
    """Return the sizes of a transformer; None of other backbones."""
    blocks = view_blocks(backbone)
    if blocks is None:
        return None
    shapes = {name: blocks.shape_of(name) for name in blocks.maps}
    sizes = {name: (shape[0], shape[1]) for name, shape in shapes.items()}
    return BlockOutline(blocks.depth, blocks.width, sizes)


def cut_padding(ids: Tensor) -> Tensor:
    """Cut token ids [B, L] to the longest row, where their values can be read.

    Examples
    --------
    >>> cut_padding(torch.tensor([[4, 0, 0, 0], [5, 6, 0, 0]])).shape
    torch.Size([2, 2])
    """
    if not can_be_read(ids):
        return ids
    used = (ids != PADDING).any(0).nonzero()
    return ids[:, : int(used[-1]) + 1] if len(used) else ids[:, :1]


def count_tokens(ids: Tensor) -> Tensor:
    """Count the tokens [B] of rows of token ids [B, L]."""
    return (ids != PADDING).sum(1)


# -- ours ------------------------------------------------------------------------------------------


class OwnBlocks:
    """The blocks of our transformers."""

    maps = (*ATTENTION_MAPS, "widen", "narrow")

    def __init__(self, net: Any) -> None:
        self.net = net
        self.depth, self.width = len(net.blocks), int(net.blocks[0].attention.query.in_features)
        if isinstance(net, TextTransformer):
            self.count_tokens = count_tokens

    def shape_of(self, name: str) -> torch.Size:
        block: Any = self.net.blocks[0]
        layer: Any = getattr(block.attention if name in ATTENTION_MAPS else block, name)
        return torch.Size(layer.weight.shape)

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        ids = cut_padding(x) if isinstance(self.net, TextTransformer) else x
        found: tuple[Tensor, Tensor | None] = self.net.embed(ids)
        return found

    def attention_input(self, number: int, h: Tensor) -> Tensor:
        block: TransformerBlock = self.net.blocks[number]
        return h if block.post else block.attention_norm(h)

    def run(self, number: int, h: Tensor, mask: Tensor | None, more: Insertion) -> Tensor:
        block: TransformerBlock = self.net.blocks[number]
        given, own = self.attention_input(number, h), block.attention
        q, k, v = (more.map(getattr(own, name), name, given) for name in ("query", "key", "value"))
        found = more.map(own.output, "output", more.attend(q, k, v, mask, own.heads))
        h = h + block.attention_dropout(found)
        if block.post:
            h = block.attention_norm(h)
        inside = F.gelu(
            more.map(block.widen, "widen", h if block.post else block.feed_forward_norm(h))
        )
        y = h + block.feed_forward_dropout(more.map(block.narrow, "narrow", inside))
        if more.adapter is not None:
            y = y + more.adapter(h)
        result: Tensor = block.feed_forward_norm(y) if block.post else y
        return result

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = self.net.pool(h, mask)
        return found

    def pool_prompts(self, h: Tensor) -> Tensor:
        mean = self.net.finish_mean(self.net.last_norm(h).mean(1))
        return F.normalize(mean, dim=-1) if getattr(self.net, "unit", False) else mean


class BlocksBehind:
    """The blocks of a transformer behind a module that makes its inputs of images."""

    def __init__(self, look: nn.Module, blocks: Blocks) -> None:
        self._look, self._blocks = look, blocks
        self.depth, self.width = blocks.depth, blocks.width

    @property
    def maps(self) -> tuple[str, ...]:
        return self._blocks.maps

    def shape_of(self, name: str) -> torch.Size:
        return self._blocks.shape_of(name)

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._blocks.embed(self._look(x))

    def attention_input(self, number: int, h: Tensor) -> Tensor:
        return self._blocks.attention_input(number, h)

    def run(self, number: int, h: Tensor, mask: Tensor | None, more: Insertion) -> Tensor:
        return self._blocks.run(number, h, mask, more)

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        return self._blocks.pool(h, mask)

    def pool_prompts(self, h: Tensor) -> Tensor:
        return self._blocks.pool_prompts(h)


# -- timm ------------------------------------------------------------------------------------------

_TIMM_PARTS = ("patch_embed", "_pos_embed", "patch_drop", "norm_pre", "blocks", "norm", "fc_norm",
               "forward_head")  # fmt: skip
_TIMM_BLOCK = ("norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")
_TIMM_MAPS = {"output": "attn.proj", "widen": "mlp.fc1", "narrow": "mlp.fc2"}


def _is_timm_transformer(net: Any) -> bool:
    if not all(hasattr(net, name) for name in _TIMM_PARTS):
        return False
    return all(
        all(hasattr(one, name) for name in _TIMM_BLOCK)
        and type(one).__name__ == "Block"
        and all(hasattr(one.attn, name) for name in ("qkv", "proj", "q_norm", "num_heads"))
        for one in net.blocks
    )


class TimmBlocks:
    """The blocks of timm's `VisionTransformer`, whose query, key and value are one map."""

    maps = (*ATTENTION_MAPS, "widen", "narrow")

    def __init__(self, net: Any) -> None:
        self.net = net
        self.depth, self.width = len(net.blocks), int(net.embed_dim)
        attn = net.blocks[0].attn
        if getattr(attn.attn_drop, "p", 0.0):
            raise bad("model", "a transformer without dropout of attention weights", attn.attn_drop)

    def shape_of(self, name: str) -> torch.Size:
        if name in _TIMM_MAPS:
            layer = self.net.blocks[0].get_submodule(_TIMM_MAPS[name])
            return torch.Size(layer.weight.shape)
        rows, width = self.net.blocks[0].attn.qkv.weight.shape
        return torch.Size((rows // 3, width))

    def embed(self, x: Tensor) -> tuple[Tensor, None]:
        net = self.net
        return net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(x)))), None

    def attention_input(self, number: int, h: Tensor) -> Tensor:
        found: Tensor = self.net.blocks[number].norm1(h)
        return found

    def run(self, number: int, h: Tensor, mask: Tensor | None, more: Insertion) -> Tensor:
        block = self.net.blocks[number]
        h = h + block.drop_path1(block.ls1(self._attend(block.attn, block.norm1(h), mask, more)))
        mlp, given = block.mlp, block.norm2(h)
        inside = mlp.norm(mlp.drop1(mlp.act(more.map(mlp.fc1, "widen", given))))
        y = mlp.drop2(more.map(mlp.fc2, "narrow", inside))
        y = h + block.drop_path2(block.ls2(y))
        result: Tensor = y if more.adapter is None else y + more.adapter(h)
        return result

    def _attend(self, attn: Any, x: Tensor, mask: Tensor | None, more: Insertion) -> Tensor:
        parts = attn.qkv(x).chunk(3, -1)
        q, k, v = (
            update_map(own, x, more.updates.get(name))
            for name, own in zip(("query", "key", "value"), parts, strict=True)
        )
        size = q.shape[-1] // attn.num_heads
        q, k = (
            norm(one.unflatten(-1, (attn.num_heads, size))).flatten(-2)
            for norm, one in ((attn.q_norm, q), (attn.k_norm, k))
        )
        found = attn.norm(more.attend(q, k, v, mask, attn.num_heads))
        if getattr(attn, "gate", None) is not None:
            found = found * attn.gate(x).sigmoid()
        result: Tensor = attn.proj_drop(more.map(attn.proj, "output", found))
        return result

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = self.net.forward_head(self.net.norm(h), pre_logits=True)
        return found

    def pool_prompts(self, h: Tensor) -> Tensor:
        found: Tensor = self.net.fc_norm(self.net.norm(h).mean(1))
        return found


# -- Hugging Face ----------------------------------------------------------------------------------


class HuggingFaceEncoder(nn.Module):
    """A Hugging Face model that is built like BERT or ViT, as a backbone [B, ...] -> [B, F].

    Parameters
    ----------
    model
        ``BertModel``, ``RobertaModel``, ``ViTModel`` or one with the same parts. It is made by you,
        say by ``from_pretrained(folder)``; the package transformers is not needed here.
    pooling
        ``mean`` of all tokens that are no padding, or the ``first`` one.

    Notes
    -----
    Inputs are token ids, 0 for padding, or images.
    """

    def __init__(self, model: Any, pooling: str = "mean") -> None:
        super().__init__()
        if not hasattr(model, "embeddings") or not hasattr(
            getattr(model, "encoder", None), "layer"
        ):
            expected = "a model with embeddings and encoder.layer, such as BertModel or ViTModel"
            raise bad("model", expected, type(model).__name__)
        self.by_mean = check_choice("pooling", pooling, ("mean", "first")) == "mean"
        self.model = model
        self.features = int(model.config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        blocks = self.insertable_blocks()
        h, mask = blocks.embed(x)
        for number in range(blocks.depth):
            h = blocks.run(number, h, mask, Insertion())
        return blocks.pool(h, mask)

    def insertable_blocks(self) -> HuggingFaceBlocks:
        """The blocks of the model, for methods that insert something into them."""
        return HuggingFaceBlocks(self.model, by_mean=self.by_mean)


class HuggingFaceBlocks:
    """The blocks of a Hugging Face model that is built like BERT (norms behind) or ViT (before)."""

    maps = (*ATTENTION_MAPS, "widen", "narrow")

    def __init__(self, model: Any, *, by_mean: bool) -> None:
        self.model, self.by_mean = model, by_mean
        self.layers = model.encoder.layer
        self.depth, self.width = len(self.layers), int(model.config.hidden_size)
        self.heads = int(model.config.num_attention_heads)
        first = self.layers[0]
        self.post = not hasattr(first, "layernorm_before")
        if self.post:
            self.count_tokens = count_tokens
        kind = str(getattr(model.config, "hidden_act", "gelu"))
        if kind != "gelu":
            raise bad("model", "a Hugging Face model with hidden_act gelu", kind)

    def _parts(self, number: int) -> dict[str, Any]:
        layer = self.layers[number]
        own = layer.attention.self if self.post else layer.attention.attention
        return {
            "query": own.query, "key": own.key, "value": own.value,
            "output": layer.attention.output.dense, "widen": layer.intermediate.dense,
            "narrow": layer.output.dense,
        }  # fmt: skip

    def shape_of(self, name: str) -> torch.Size:
        return torch.Size(self._parts(0)[name].weight.shape)

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.post:
            return self.model.embeddings(x), None
        ids = cut_padding(x).long()
        return self.model.embeddings(ids), ids != PADDING

    def attention_input(self, number: int, h: Tensor) -> Tensor:
        found: Tensor = h if self.post else self.layers[number].layernorm_before(h)
        return found

    def run(self, number: int, h: Tensor, mask: Tensor | None, more: Insertion) -> Tensor:
        layer, maps = self.layers[number], self._parts(number)
        given = self.attention_input(number, h)
        q, k, v = (more.map(maps[name], name, given) for name in ("query", "key", "value"))
        found = more.map(maps["output"], "output", more.attend(q, k, v, mask, self.heads))
        h = h + layer.attention.output.dropout(found)
        if self.post:
            h = layer.attention.output.LayerNorm(h)
        inside = F.gelu(
            more.map(maps["widen"], "widen", h if self.post else layer.layernorm_after(h))
        )
        y = h + layer.output.dropout(more.map(maps["narrow"], "narrow", inside))
        if more.adapter is not None:
            y = y + more.adapter(h)
        result: Tensor = layer.output.LayerNorm(y) if self.post else y
        return result

    def _norm(self, h: Tensor) -> Tensor:
        found: Tensor = h if self.post else self.model.layernorm(h)
        return found

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        h = self._norm(h)
        if not self.by_mean:
            return h[:, 0]
        if mask is None:
            return h.mean(1)
        real = mask.to(h.dtype)[..., None]
        return (h * real).sum(1) / real.sum(1).clamp(min=1.0)

    def pool_prompts(self, h: Tensor) -> Tensor:
        return self._norm(h).mean(1)
