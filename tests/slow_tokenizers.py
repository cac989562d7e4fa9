"""Tokenizers that do not say where their tokens are, small or without files."""

from __future__ import annotations

from pathlib import Path

from transformers import BertJapaneseTokenizer, ByT5Tokenizer, CanineTokenizer, PythonBackend
from transformers.models.bertweet.tokenization_bertweet import BertweetTokenizer

VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] 東京 は 大 ##き ##い good film ##s cafe ! 。 ##lm fi".split()


def japanese(folder: Path, subwords: str = "wordpiece") -> BertJapaneseTokenizer:
    """Word pieces over a Python tokenizer, which also normalises."""
    path = folder / "vocabulary.txt"
    path.write_text("\n".join(VOCABULARY), encoding="utf-8")
    return BertJapaneseTokenizer(str(path), word_tokenizer_type="basic", subword_tokenizer_type=subwords)


def tweets(folder: Path) -> BertweetTokenizer:
    """BPE whose pieces end in ``@@`` where the word goes on."""
    (folder / "vocabulary").write_text("goo@@ 1\nd 1\nfilm 1\nf@@ 1\n", encoding="utf-8")
    (folder / "merges").write_text("#version: 0.2\ng o 1\ngo o 1\nf i 1\nfi l 1\nfil m</w> 1\n", encoding="utf-8")
    return BertweetTokenizer(str(folder / "vocabulary"), str(folder / "merges"))


class Reversing(PythonBackend):
    """A tokenizer whose tokens are not the text's: each word backwards."""

    vocab_files_names = {}

    def __init__(self, **options: object) -> None:
        words = ["<pad>", "<unk>", "doog", "mlif"]
        self._ids = {word: n for n, word in enumerate(words)}
        super().__init__(pad_token="<pad>", unk_token="<unk>", **options)

    @property
    def vocab_size(self) -> int:
        return len(self._ids)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return [word[::-1] for word in text.split()]

    def _convert_token_to_id(self, token: str) -> int:
        return self._ids.get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return next(word for word, n in self._ids.items() if n == index)


def byte_tokens() -> ByT5Tokenizer:
    """A token for each byte."""
    return ByT5Tokenizer()


def characters() -> CanineTokenizer:
    """A token for each character."""
    return CanineTokenizer()
