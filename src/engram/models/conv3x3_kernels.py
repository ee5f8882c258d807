# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
"""Triton kernels of 3 x 3 convolutions with few channels; imported on CUDA only.

Images lie in memory with the channels last, as [pixels, C]; a border of zeros is around each. The
nine taps of a filter are taken in groups of SPAN: one by one, or the three of a row at once, whose
pixels are neighbours in memory, so that a tile is multiplied by few products of matrices although
its channels are few. A gradient of the input is a convolution too, with the filter TURNED; at
STRIDE 2 it finds something for every second tap. A filter of SIZE 1 is the middle tap of one of
SIZE 3. What a batch norm before or after needs of the answer (AFTER) is made while it is at hand:
sums over a tile, finished by small kernels without atomic additions, so that results repeat bit by
bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING, MOMENTS, SUM, SLOPES = (tl.constexpr(one) for one in range(4))  # AFTER
TILES_IN_IMAGE, IMAGES_IN_TILE, NEITHER = (tl.constexpr(one) for one in range(3))  # FIT


@triton.jit
def _places(tile, i, H: tl.constexpr, W: tl.constexpr, TILE: tl.constexpr, FIT: tl.constexpr):
    """Image, line and column of the pixels i of a tile, by what is the same in every tile."""
    if FIT == TILES_IN_IMAGE:
        many: tl.constexpr = H * W // TILE
        return tile // many, tile % many * (TILE // W) + i // W, i % W
    elif FIT == IMAGES_IN_TILE:
        return tile * (TILE // (H * W)) + i // (H * W), i // W % H, i % W
    else:
        p = tile * TILE + i
        return p // (H * W), p // W % H, p % W


@triton.jit
def _around(
    x, tile, i, j, group, pixels, kind,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
    STRIDE: tl.constexpr, TURNED: tl.constexpr, FIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """[TILE, WIDE] what a group of taps sees at the pixels of a tile of an answer of H x W."""
    row = group if SPAN == 3 else group // 3
    first = 0 if SPAN == 3 else group % 3
    image, h, w = _places(tile, i, H, W, TILE, FIT)
    inside = (j < SPAN * C)[None, :]
    if not EVEN:
        inside &= (tile * TILE + i < pixels)[:, None]
    if STRIDE == 1:
        h += row - 1
        w = w[:, None] + (first - 1 + j // C)[None, :]
        inside &= ((h >= 0) & (h < H))[:, None] & (w >= 0) & (w < W)
        x += (tile * TILE + (row - 1) * W + (first - 1)) * C
        at = i * C
    elif TURNED:  # one tap at a time: every second pixel has none
        h += row - 1
        w += first - 1
        there = (h >= 0) & (h < H) & (h % 2 == 0) & (w >= 0) & (w < W) & (w % 2 == 0)
        inside &= there[:, None]
        at = ((image * (H // 2) + h // 2) * (W // 2) + w // 2) * C
    else:
        h = 2 * h + row - 1
        at = ((image * (2 * H) + h) * (2 * W) + 2 * w + (first - 1)) * C
        w = (2 * w)[:, None] + (first - 1 + j // C)[None, :]
        inside &= ((h >= 0) & (h < 2 * H))[:, None] & (w >= 0) & (w < 2 * W)
    return tl.load(x + at[:, None] + j[None, :], mask=inside, other=0.0).to(kind)


@triton.jit
def _beside(
    x, tile, i, j, pixels, kind, GROUP: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
    FIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """`_around` at stride 1 for taps that are known beforehand: it asks for edges they can meet."""
    ROW: tl.constexpr = GROUP if SPAN == 3 else GROUP // 3
    COLUMN: tl.constexpr = 0 if SPAN == 3 else GROUP % 3
    _, h, w = _places(tile, i, H, W, TILE, FIT)
    inside = (j < SPAN * C)[None, :]
    if not EVEN:
        inside &= (tile * TILE + i < pixels)[:, None]
    if ROW == 0:
        inside &= (h > 0)[:, None]
    if ROW == 2:
        inside &= (h < H - 1)[:, None]
    if SPAN == 3:
        inside &= ((w > 0)[:, None] | (j >= C)[None, :]) & (
            (w < W - 1)[:, None] | (j < 2 * C)[None, :]
        )
    elif COLUMN == 0:
        inside &= (w > 0)[:, None]
    elif COLUMN == 2:
        inside &= (w < W - 1)[:, None]
    x += (tile * TILE + (ROW - 1) * W + (COLUMN - 1)) * C
    return tl.load(x + (i * C)[:, None] + j[None, :], mask=inside, other=0.0).to(kind)


@triton.jit
def _taps(
    weight, j, n, group, of_k, of_n, of_tap, kind,
    C: tl.constexpr, N: tl.constexpr, SPAN: tl.constexpr, SIZE: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """[WIDE, COLS] the weights of a group of taps."""
    at = (j % C * of_k)[:, None] + (n * of_n)[None, :]
    if SIZE == 3:
        tap = group * SPAN + j // C
        at += ((8 - tap if TURNED else tap) * of_tap)[:, None]
    inside = (j < SPAN * C)[:, None] & (n < N)[None, :]
    return tl.load(weight + at, mask=inside, other=0.0).to(kind)


@triton.jit(do_not_specialize=["pixels"])
def _convolve(
    x, weight, y, other, mean, rstd, gamma, beta, one, two, pixels, of_k, of_n, of_tap,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    TILE: tl.constexpr, COLS: tl.constexpr, SPAN: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, TURNED: tl.constexpr,
    AFTER: tl.constexpr, FIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """STAGES 0 asks for everything at once; else the loop over groups of taps is pipelined."""
    tile = tl.program_id(0)
    i = tl.arange(0, TILE)
    n = tl.program_id(1) * COLS + tl.arange(0, COLS)
    j = tl.arange(0, WIDE)
    kind = y.dtype.element_ty
    acc = tl.zeros([TILE, COLS], tl.float32)
    begin: tl.constexpr = 4 if SIZE == 1 else 0  # the tap in the middle, or all
    end: tl.constexpr = 5 if SIZE == 1 else 9 // SPAN
    if STAGES == 0:
        seen = ()
        taps = ()
        for group in tl.static_range(begin, end):
            if STRIDE == 1:
                found = _beside(x, tile, i, j, pixels, kind, group, H, W, C, TILE, SPAN, FIT, EVEN)
            else:
                found = _around(
                    x, tile, i, j, group, pixels, kind, H, W, C, TILE, SPAN, STRIDE, TURNED, FIT,
                    EVEN,
                )  # fmt: skip
            seen += (found,)
        for group in tl.static_range(begin, end):
            found = _taps(weight, j, n, group, of_k, of_n, of_tap, kind, C, N, SPAN, SIZE, TURNED)
            taps += (found,)
        for group in tl.static_range(end - begin):
            acc = tl.dot(seen[group], taps[group], acc)
    else:
        for group in tl.range(begin, end, num_stages=STAGES):
            a = _around(
                x, tile, i, j, group, pixels, kind, H, W, C, TILE, SPAN, STRIDE, TURNED, FIT, EVEN
            )
            u = _taps(weight, j, n, group, of_k, of_n, of_tap, kind, C, N, SPAN, SIZE, TURNED)
            acc = tl.dot(a, u, acc)
    p = tile * TILE + i
    ok = (n < N)[None, :] if EVEN else (p < pixels)[:, None] & (n < N)[None, :]
    at = p[:, None] * N + n[None, :]
    if AFTER == SUM:
        acc += tl.load(other + at, mask=ok, other=0.0).to(tl.float32)
    tl.store(y + at, acc.to(kind), mask=ok)
    if AFTER == MOMENTS:  # pixels beyond the last are 0
        count = tl.minimum(TILE, pixels - tile * TILE)
        m = tl.sum(acc, 0) / count
        tl.store(one + tile * N + n, m, mask=n < N)
        tl.store(two + tile * N + n, tl.sum(acc * acc, 0) - m * m * count, mask=n < N)
    if AFTER == SLOPES:
        m = tl.load(mean + n, mask=n < N, other=0.0)
        s = tl.load(rstd + n, mask=n < N, other=0.0) * tl.load(gamma + n, mask=n < N, other=0.0)
        t = tl.load(beta + n, mask=n < N, other=0.0)
        d = tl.load(other + at, mask=ok, other=0.0).to(tl.float32) - m[None, :]
        acc = tl.where(d * s[None, :] + t[None, :] > 0, acc, 0.0)
        tl.store(one + tile * N + n, tl.sum(acc, 0), mask=n < N)
        tl.store(two + tile * N + n, tl.sum(acc * d, 0), mask=n < N)


@triton.jit(do_not_specialize=["pixels", "tiles"])
def _settle(
    one, two, mean, rstd, running_mean, running_var, pixels, tiles, M, eps, momentum,
    N: tl.constexpr, TILE: tl.constexpr, SOME: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation of the batch from those of its tiles; moves the running statistics."""
    c = tl.program_id(0) * FEW + tl.arange(0, FEW)
    inside = c < N
    base = tl.load(one + c, mask=inside, other=0.0)
    first = tl.zeros([SOME, FEW], tl.float32)
    second = tl.zeros([SOME, FEW], tl.float32)
    for start in range(0, tiles, SOME):
        i = start + tl.arange(0, SOME)
        ok = (i < tiles)[:, None] & inside[None, :]
        rows = tl.minimum(TILE, pixels - i * TILE).to(tl.float32)[:, None]
        d = tl.load(one + i[:, None] * N + c[None, :], mask=ok, other=0.0) - base[None, :]
        d = tl.where(ok, d, 0.0)
        first += rows * d
        second += tl.load(two + i[:, None] * N + c[None, :], mask=ok, other=0.0) + rows * d * d
    away = tl.sum(first, 0) / M
    var = tl.maximum(tl.sum(second, 0) / M - away * away, 0.0)
    m = base + away
    tl.store(mean + c, m, mask=inside)
    tl.store(rstd + c, 1.0 / tl.sqrt(var + eps), mask=inside)
    old = tl.load(running_mean + c, mask=inside, other=0.0)
    tl.store(running_mean + c, old + momentum * (m - old), mask=inside)
    old = tl.load(running_var + c, mask=inside, other=0.0)
    tl.store(running_var + c, old + momentum * (var * (M / (M - 1.0)) - old), mask=inside)


@triton.jit
def _added(
    acc, d, x, tile, i, j, pixels, GROUP: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
    FIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    v = _beside(x, tile, i, j, pixels, d.dtype, GROUP, H, W, C, TILE, SPAN, FIT, EVEN)
    return tl.dot(tl.trans(v), d, acc)


@triton.jit
def _keep(
    sums, acc, part, group, j, n,
    C: tl.constexpr, N: tl.constexpr, SPAN: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    at = (part * TAPS * C + group * SPAN * C + j)[:, None] * N + n[None, :]
    tl.store(sums + at, acc, mask=(j < SPAN * C)[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["pixels", "CHUNK"])
def _weight_parts(
    x, dy, sums, pixels, CHUNK,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    TILE: tl.constexpr, COLS: tl.constexpr, SPAN: tl.constexpr, WIDE: tl.constexpr,
    GROUPS: tl.constexpr, STAGES: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    FIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """[taps, C, N] gradients of the weights by the pixels of a part: of GROUPS groups, 1 or 3."""
    part, group = tl.program_id(0), tl.program_id(1) * GROUPS
    middle: tl.constexpr = 4 if SIZE == 1 else 0
    kind = dy.dtype.element_ty
    j = tl.arange(0, WIDE)
    n = tl.arange(0, COLS)
    i = tl.arange(0, TILE)
    a = tl.zeros([WIDE, COLS], tl.float32)
    b = tl.zeros([WIDE, COLS], tl.float32)
    c = tl.zeros([WIDE, COLS], tl.float32)
    last = tl.minimum((part + 1) * CHUNK, tl.cdiv(pixels, TILE))
    for tile in tl.range(part * CHUNK, last, num_stages=STAGES):
        p = tile * TILE + i
        ok = (n < N)[None, :] if EVEN else (p < pixels)[:, None] & (n < N)[None, :]
        d = tl.load(dy + p[:, None] * N + n[None, :], mask=ok, other=0.0)
        if GROUPS == 3 and STRIDE == 1:  # the rows of a filter, one by one
            a = _added(a, d, x, tile, i, j, pixels, 0, H, W, C, TILE, SPAN, FIT, EVEN)
            b = _added(b, d, x, tile, i, j, pixels, 1, H, W, C, TILE, SPAN, FIT, EVEN)
            c = _added(c, d, x, tile, i, j, pixels, 2, H, W, C, TILE, SPAN, FIT, EVEN)
        else:
            for g in tl.static_range(GROUPS):
                v = _around(
                    x, tile, i, j, group + middle + g, pixels, kind, H, W, C, TILE, SPAN, STRIDE,
                    False, FIT, EVEN,
                )  # fmt: skip
                if g == 0:
                    a = tl.dot(tl.trans(v), d, a)
                elif g == 1:
                    b = tl.dot(tl.trans(v), d, b)
                else:
                    c = tl.dot(tl.trans(v), d, c)
    _keep(sums, a, part, group, j, n, C, N, SPAN, SIZE * SIZE)
    if GROUPS == 3:
        _keep(sums, b, part, group + 1, j, n, C, N, SPAN, SIZE * SIZE)
        _keep(sums, c, part, group + 2, j, n, C, N, SPAN, SIZE * SIZE)


@triton.jit(do_not_specialize=["parts"])
def _weight_total(
    sums, dweight, parts, of_k, of_n, of_tap,
    C: tl.constexpr, N: tl.constexpr, TAPS: tl.constexpr, SOME: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * FEW + tl.arange(0, FEW)
    inside = i < TAPS * C * N
    found = tl.zeros([SOME, FEW], tl.float32)
    for start in range(0, parts, SOME):
        p = start + tl.arange(0, SOME)
        ok = (p < parts)[:, None] & inside[None, :]
        found += tl.load(sums + p[:, None] * (TAPS * C * N) + i[None, :], mask=ok, other=0.0)
    at = i // (C * N) * of_tap + i // N % C * of_k + i % N * of_n
    tl.store(dweight + at, tl.sum(found, 0), mask=inside)


@triton.jit
def _pack(
    weight, packed, of_k, of_n, of_tap,
    C: tl.constexpr, N: tl.constexpr, TAPS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """[taps, C, N] the weights of a layer in the kind and order in which `_convolve` likes them."""
    i = tl.program_id(0) * FEW + tl.arange(0, FEW)
    at = i // (C * N) * of_tap + i // N % C * of_k + i % N * of_n
    inside = i < TAPS * C * N
    tl.store(packed + i, tl.load(weight + at, mask=inside), mask=inside)
