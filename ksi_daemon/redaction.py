"""Takes secrets out of what is about to be logged, by the name they stand under and by the shape they have."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "[redacted]"
DEPTH_LIMIT = 8

WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")
SECRET_NAME = re.compile(
    r"(?:^|_)(?:pass(?:word|wd|phrase)?|pwd|secret|token|authorization|api_?key|private_?key|access_?key|credential|cookie)s?(?:$|_)"
)
SECRET_SHAPE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|\b(?:ksi|epi)_[A-Za-z0-9_\-]{16,}"
    r"|\b[Bb]earer +[A-Za-z0-9._~+/\-]{8,}=*"
    r"|\bA(?:KIA|SIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_\-]{16,}"
    r"|\beyJ[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]*"
    r"|(?<=://)[^/\s:@]{1,200}:[^/\s@]{1,200}(?=@)",
    re.DOTALL,
)


def redact(value: Any, depth: int = 0) -> Any:
    """A copy without secrets. Anything nested deeper than any honest record is left out."""
    if isinstance(value, str):
        return SECRET_SHAPE.sub(HIDDEN, value)
    if isinstance(value, int | float | bool | None):
        return value
    if depth >= DEPTH_LIMIT:
        return "[nested too deep]"
    if isinstance(value, Mapping):
        return {
            redact(str(name), depth + 1): HIDDEN if _names_a_secret(str(name)) else redact(inner, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(inner, depth + 1) for inner in value]
    return SECRET_SHAPE.sub(HIDDEN, str(value))


def _names_a_secret(name: str) -> bool:
    """`X-Api-Key`, `apiKey` and `api_key` are one name."""
    return SECRET_NAME.search(WORD_BREAK.sub("_", name).lower()) is not None
