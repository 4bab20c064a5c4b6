"""Instant vectors: the mean of token vectors from a table (wordllama's, 256 dimensions), thousands of texts a second."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ksi_daemon.errors import Unavailable
from ksi_daemon.retrieval.embedder import unit_rows
from ksi_daemon.retrieval.package_data import PackageFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ksi_daemon.retrieval.embedder import Matrix

TABLE = PackageFile(
    "wordllama",
    "wordllama/weights/l2_supercat_256.safetensors",
    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
)
TOKENIZER = PackageFile(
    "wordllama",
    "wordllama/tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
)


class StaticEmbedder:
    """Reads the two data files itself: the package's own loader asks a model hub."""

    fingerprint = f"wordllama-256-{TABLE.sha256[:12]}"
    dimensions = 256

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[Tokenizer, Matrix] | None = None

    def embed(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        tokenizer, table = self._load()
        sums = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, encoding in enumerate(tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)):
            ids = encoding.ids
            if ids:  # the sum of the rows as a product is faster than `mean`; only the direction counts
                sums[row] = np.ones(len(ids), dtype=np.float32) @ table.take(ids, axis=0, mode="clip")
        return unit_rows(sums)

    def _load(self) -> tuple[Tokenizer, Matrix]:
        with self._lock:
            if self._loaded is None:
                from tokenizers import Tokenizer

                tokenizer = Tokenizer.from_str(TOKENIZER.read().decode())
                tokenizer.no_padding()
                tokenizer.no_truncation()
                self._loaded = (tokenizer, _read_table(TABLE.read(), self.dimensions))
            return self._loaded


def _read_table(content: bytes, dimensions: int) -> Matrix:
    """The one tensor of a safetensors file: eight bytes of length, a JSON header, the numbers."""
    import numpy as np

    length = int.from_bytes(content[:8], "little")
    header = msgspec.json.decode(content[8 : 8 + length])
    tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
    types = {"F16": "<f2", "F32": "<f4"}
    if len(tensors) != 1 or tensors[0]["dtype"] not in types or tensors[0]["shape"][1] != dimensions:
        raise Unavailable("the table of token vectors has a form that this program does not know")
    start, end = tensors[0]["data_offsets"]
    numbers = np.frombuffer(content[8 + length :][start:end], dtype=types[tensors[0]["dtype"]])
    table: Matrix = numbers.reshape(tensors[0]["shape"]).astype(np.float32)
    return table
