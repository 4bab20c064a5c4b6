"""Embedders for tests: vectors of hashed words, made at once, or only when the test says so, or never."""

import hashlib
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np


class WordEmbedder:
    """Texts that share words are near each other."""

    def __init__(self, name: str = "words", dimensions: int = 32) -> None:
        self.fingerprint = name
        self.dimensions = dimensions
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> Any:
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            self.embedded.append(text)
            rows[row, 0] = 0.01
            for word in re.findall(r"\w+", text.casefold()):
                digest = hashlib.sha256(f"{self.fingerprint} {word}".encode()).digest()
                rows[row, digest[0] % self.dimensions] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class GatedEmbedder(WordEmbedder):
    """Embeds in a background thread only after `opened` was set; notes when it is asked."""

    def __init__(self, name: str = "gated") -> None:
        super().__init__(name)
        self.asked = threading.Event()
        self.opened = threading.Event()

    def embed(self, texts: Sequence[str]) -> Any:
        if threading.current_thread().name.startswith("ksi-embedding"):
            self.asked.set()
            assert self.opened.wait(30)
        return super().embed(texts)


class RefusingEmbedder(WordEmbedder):
    """Cannot embed some texts, or none at all."""

    def __init__(self, name: str = "refusing", *, refused: str = "poison") -> None:
        super().__init__(name)
        self.refused = refused

    def embed(self, texts: Sequence[str]) -> Any:
        if any(self.refused in text for text in texts):
            raise ValueError("this text cannot be embedded")
        return super().embed(texts)
