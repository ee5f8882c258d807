"""Rows in a model file that only a key opens: inputs of the memory and of calibration rows, and
what is stored beside exemplars, encrypted with AES-256-GCM.

The key is any text. What encrypts is derived from it by scrypt, with a salt that the file holds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.errors import EngramError, RecordError, bad

KEY_VARIABLE = "ENGRAM_KEY"
SEALED = "sealed"  # name of the one tensor that holds the others
PRIVATE = ("rows/x", "calibration/x", "values/")  # beginnings of names
LEAST = 8  # characters of a key
_COST = {"n": 1 << 15, "r": 8, "p": 1}
_SALT = os.urandom(16)  # of the files that this process writes: deriving takes a tenth of a second
_ABOUT = b"engram sealed rows 1"  # authenticated with the content


def check_key(key: Any) -> str:
    """Return a key if it is a text that is not too short; raise otherwise."""
    if not isinstance(key, str) or len(key) < LEAST:
        shown = "a shorter one" if isinstance(key, str) else type(key).__name__
        raise bad("key", f"a text of at least {LEAST} characters", shown)
    return key


def find_key(key: str | None) -> str | None:
    """Return the key given, or that of the environment variable, or None."""
    found = os.environ.get(KEY_VARIABLE) if key is None else key
    return None if not found and key is None else check_key(found)


def seal(
    tensors: Mapping[str, Tensor], key: str, prefixes: tuple[str, ...] = PRIVATE
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Replace private tensors by one encrypted tensor; return all, and facts to open it."""
    from safetensors.torch import save

    private = {k: v.contiguous() for k, v in tensors.items() if k.startswith(prefixes)}
    nonce = os.urandom(12)
    content = _cipher(key, _SALT, _COST).encrypt(nonce, save(private), _ABOUT)
    rest = {k: v for k, v in tensors.items() if k not in private}
    facts = {"cipher": "AES-256-GCM", "salt": _SALT.hex(), "nonce": nonce.hex(), "scrypt": _COST}
    return {**rest, SEALED: torch.from_numpy(np.frombuffer(content, np.uint8).copy())}, facts


def unseal(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], key: str, path: object
) -> dict[str, Tensor]:
    """Return tensors with the private ones that `seal` encrypted; raise for another key."""
    from cryptography.exceptions import InvalidTag
    from safetensors.torch import load

    content = tensors[SEALED].numpy().tobytes()
    cipher = _cipher(key, bytes.fromhex(facts["salt"]), facts["scrypt"])
    try:
        plain = cipher.decrypt(bytes.fromhex(facts["nonce"]), content, _ABOUT)
    except InvalidTag:
        raise RecordError(f"{path}: the key does not open its rows") from None
    return {**{k: v for k, v in tensors.items() if k != SEALED}, **load(plain)}


def _cipher(key: str, salt: bytes, cost: Mapping[str, int]) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise EngramError(
            "encrypted rows need cryptography: pip install 'engram-cl[encrypt]'"
        ) from None
    return AESGCM(_derive(key, salt, cost["n"], cost["r"], cost["p"]))


@lru_cache(maxsize=16)
def _derive(key: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    if n > 1 << 20 or r > 32 or p > 16:  # a forged file must not exhaust the memory
        raise RecordError(f"a cost of scrypt beyond reason ({n}, {r}, {p})")
    return hashlib.scrypt(key.encode(), salt=salt, n=n, r=r, p=p, maxmem=1 << 30, dklen=32)
