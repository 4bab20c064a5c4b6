"""What makes vectors of texts. The built-in ones need no network; another one only has to have this shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Blocking and called from worker threads, from several at once; loads what it needs at its first use."""

    @property
    def fingerprint(self) -> str:
        """Names the model and its data. Vectors of different fingerprints are never compared."""

    @property
    def dimensions(self) -> int:
        """The length of a vector."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row of unit length a text. A row depends on its text alone, not on its neighbours."""


def stored(matrix: Matrix) -> list[bytes]:
    """Each row as it is kept in the database: half precision, little-endian."""
    return [row.tobytes() for row in matrix.astype("<f2")]


def loaded(vectors: Sequence[bytes], dimensions: int) -> Matrix:
    """The rows that `stored` made."""
    import numpy as np

    half = np.frombuffer(b"".join(vectors), dtype="<f2").reshape(len(vectors), dimensions)
    return half.astype(np.float32)


def unit_rows(matrix: Matrix) -> Matrix:
    """Rows scaled to length 1; a row of zeros stays what it is."""
    import numpy as np

    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    scaled: Matrix = (matrix / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled
