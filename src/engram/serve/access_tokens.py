"""`AccessTokens`: who may predict, who may also have a model learn, who may also change it back."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from engram.errors import bad, check_choice

ROLES = ("predict", "learn", "admin")  # each may do what those before it may
LARGEST_FILE = 1 << 20


class AccessToken(NamedTuple):
    """A token by its digest, which has the same length whatever the token."""

    role: str
    digest: bytes


class AccessTokens:
    """Tokens and their roles; without any, everybody has every role.

    Examples
    --------
    >>> tokens = AccessTokens([("predict", "a-b-c"), ("admin", "d-e-f")])
    >>> tokens.find_role(b"Bearer a-b-c"), tokens.find_role(b"Bearer d-e-f")
    ('predict', 'admin')
    >>> tokens.find_role(b"Bearer x"), AccessTokens().find_role(b"")
    ('', 'admin')
    >>> allows("learn", "predict"), allows("predict", "learn"), allows("", "predict")
    (True, False, False)
    """

    def __init__(self, tokens: Iterable[tuple[str, str]] = ()) -> None:
        self._tokens = [AccessToken(role, _digest(text.encode())) for role, text in tokens]

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def find_role(self, authorization: bytes) -> str:
        """Return the role of an ``Authorization`` header; empty if its token is not one of ours.

        It compares with every token and whole digests, so that the time it takes tells nothing.
        """
        if not self._tokens:
            return ROLES[-1]
        scheme, _, given = authorization.partition(b" ")
        digest, found = _digest(given.strip()), ""
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token.role
        return found if scheme.lower() == b"bearer" else ""


def allows(role: str, wanted: str) -> bool:
    """Return whether a role may do what another one may."""
    return role in ROLES[ROLES.index(wanted) :]


def read_tokens(path: Path) -> list[tuple[str, str]]:
    r"""Read a file with a role and a token in each line; lines with ``#`` are comments.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tokens"
    >>> _ = path.write_text("# web\npredict 7c1f\nadmin\t90ab\n")
    >>> read_tokens(path)
    [('predict', '7c1f'), ('admin', '90ab')]
    """
    if not path.is_file():
        raise bad("--tokens", "a file with a role and a token in each line", str(path))
    found: list[tuple[str, str]] = []
    with path.open("rb") as file:
        text = file.read(LARGEST_FILE).decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"--tokens, line {number} of {path}"
        if len(words) != 2:  # the line itself is not repeated: it may be a token
            raise bad(where, "a role and a token", f"{len(words)} words")
        role = check_choice(where, words[0], ROLES)
        if any(token == words[1] for _, token in found):
            raise bad(where, "each token once", "a token of a line before")
        found.append((role, words[1]))
    if not found:
        raise bad("--tokens", "a file with a role and a token in each line", f"{path}, empty")
    return found


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
