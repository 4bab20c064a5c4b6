"""Run by the interpreter that has the tokenizers, never by the daemon's: reads texts as JSON, writes the tokens of each by each tokenizer."""

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path


def tokenizer_files() -> Path:
    """The folder of the files in the package that ships them, without importing it."""
    package = importlib.util.find_spec("litellm")
    if package is None or package.origin is None:
        raise SystemExit("litellm is not installed beside this interpreter; run scripts/eval-handshake")
    return Path(package.origin).parent / "litellm_core_utils" / "tokenizers"


def counters() -> dict[str, Callable[[str], int]]:
    """A function for each tokenizer."""
    files = tokenizer_files()
    os.environ["TIKTOKEN_CACHE_DIR"] = str(files)  # else it would download them
    import tiktoken
    from tokenizers import Tokenizer

    anthropic = Tokenizer.from_file(str(files / "anthropic_tokenizer.json"))
    found: dict[str, Callable[[str], int]] = {"anthropic (older)": lambda text: len(anthropic.encode(text).ids)}
    for name in ("cl100k_base", "o200k_base"):
        encode = tiktoken.get_encoding(name).encode
        found[name] = lambda text, encode=encode: len(encode(text, disallowed_special=()))
    return found


if __name__ == "__main__":
    texts: dict[str, str] = json.load(sys.stdin)
    counts = {name: {kind: count(text) for kind, text in texts.items()} for name, count in counters().items()}
    json.dump(counts, sys.stdout)
