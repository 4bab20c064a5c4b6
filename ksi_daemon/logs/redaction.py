"""Redacts secrets in values before they are logged, audited or shown: by field name and by the shape of the text.

Quantifiers are bounded or possessive where backtracking could be slow, so that long texts are redacted quickly. In doubt text is
redacted: too much is a nuisance, too little a leak.
"""

import functools
import itertools
import re
from collections.abc import Mapping
from typing import Any

import msgspec

HIDDEN = "[redacted]"
DEPTH_LIMIT = 8

# By name -----------------------------------------------------------------------------------------------------------

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
SECRET_WORDS = frozenset({
    "apikey", "auth", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "csrf", "jwt", "otp", "pass",
    "passphrase", "passwd", "password", "passwords", "pin", "pwd", "secret", "secrets", "token", "tokens",
})  # fmt: skip
KEY_WORDS = frozenset({
    "access", "api", "client", "encryption", "hmac", "master", "private", "secret", "service", "session", "signing", "ssh",
})  # fmt: skip
# Words after a secret's name that mean a property of the secret, not the secret.
ABOUT_WORDS = frozenset({
    "at", "bytes", "count", "created", "expires", "file", "id", "ids", "kind", "length", "limit", "max", "min", "name", "path",
    "prefix", "revoked", "s", "saved", "source", "ttl", "type", "used", "version",
})  # fmt: skip


@functools.lru_cache(maxsize=4096)
def names_a_secret(name: str) -> bool:
    """Whether a field of this name holds a secret: `api_key`, `accessToken`, `X-Auth-Token`; not `token_id`, not `key`."""
    words = [word.lower() for word in WORD.findall(name[:200])]
    if not words or words[-1] in ABOUT_WORDS:
        return False
    if any(word in SECRET_WORDS for word in words):
        return True
    return any(word in KEY_WORDS and after in ("key", "keys") for word, after in itertools.pairwise(words))


def _is_not_secret_value(name: str, value: Any) -> bool:
    """`max_tokens: 512` is a number of tokens; `pin: 1234` is a secret."""
    words = {word.lower() for word in WORD.findall(name[:200])}
    return isinstance(value, bool | None) or (isinstance(value, int | float) and "tokens" in words)


# By shape ----------------------------------------------------------------------------------------------------------

# A word begins here; in JSON text the letter of an escape like \n may stand before it.
START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))"
# Tool names begin like tokens: lower-case words joined by '_', which 256 random bits never are.
TOOL = r"[a-z][a-z0-9]{0,31}(?:_[a-z0-9]{1,31}){1,12}(?![A-Za-z0-9_-])"

# Each with a text that every match contains: searching for it is much faster than trying the pattern.
SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (mark, re.compile(pattern, re.DOTALL))
    for mark, pattern in (
        ("PRIVATE KEY", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----|\Z)"),
        ("ksi_", rf"ksi_(?!{TOOL})[A-Za-z0-9_-]{{16,}}"),
        ("epi_", r"epi_[A-Za-z0-9_-]{16,}"),
        ("earer", r"[Bb]earer[ \t]{1,5}[A-Za-z0-9._~+/-]{8,}={0,3}"),
        ("EARER", r"BEARER[ \t]{1,5}[A-Za-z0-9._~+/-]{8,}={0,3}"),
        ("eyJ", r"eyJ[A-Za-z0-9_-]{17,}+(?:\.[A-Za-z0-9_-]*+){0,4}"),
        ("AKIA", r"AKIA[0-9A-Z]{16}"),
        ("ASIA", r"ASIA[0-9A-Z]{16}"),
        ("gh", r"gh[pousr]_[A-Za-z0-9]{20,}"),
        ("github_pat_", r"github_pat_[A-Za-z0-9_]{20,}"),
        ("glpat-", r"glpat-[A-Za-z0-9_-]{16,}"),
        ("sk-", START + r"sk-[A-Za-z0-9_-]{16,}"),
        ("_live_", r"[rs]k_live_[A-Za-z0-9]{16,}"),
        ("xox", r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
        ("AIza", r"AIza[A-Za-z0-9_-]{30,}"),
        ("npm_", START + r"npm_[A-Za-z0-9]{30,}"),
        ("pypi-", r"pypi-[A-Za-z0-9_-]{30,}"),
        ("hf_", START + r"hf_[A-Za-z0-9]{30,}"),
        ("://", r"(?<=://)[^/\s@\"'<>]+(?=@)"),
    )
)  # fmt: skip

# In running text: `password=…`, `"api_key": "…"` (also with escaped quotes), `Authorization: Basic …`, `--token …`.
QUOTE = r"(?:\\{0,7}[\"'])?"
VALUE = (
    r"(?!\\{0,7}[\"']?\[redacted\])"
    r"(?:\"(?:[^\"\\]++|\\.)++|'(?:[^'\\]++|\\.)++|\\{1,7}\"[^\"\\]++|\\{1,7}'[^'\\]++|[^\s,;&\"'\\)\]}]++)"
)
ASSIGNED = re.compile(
    r"((?:authorization|passphrase|password|passwd|secret|credentials?|api[_-]?key|(?:private|access|signing|encryption|session)[_-]?key"
    r"|(?:access|refresh|auth|id|session|bearer)[_-]?token|(?<![A-Za-z])(?:token|pwd|pass|auth|pin|otp))"
    rf"{QUOTE}\s{{0,3}}(?:=>|[:=])\s{{0,3}}+(?:\\{{0,7}}[\"']?(?:basic|bearer|digest|token)\s{{1,3}}+)?+)({VALUE})",
    re.IGNORECASE,
)
OWN_VERBS = frozenset({"create", "list", "revoke", "revoked", "rotate", "*"})
ASSIGNED_MARKS = ("auth", "pass", "pwd", "secret", "credential", "key", "token", "pin", "otp")
OPTION = re.compile(
    r"(--?(?:password|passwd|passphrase|token|secret|api-?key|access-?key|auth)[ \t]{1,20}+)(?!\[redacted\])(\S+)",
    re.IGNORECASE,
)
COOKIE = re.compile(rf"((?:set-)?cookie{QUOTE}\s{{0,3}}[:=]\s{{0,3}}+)(?!\[redacted\])([^\r\n\"'\\]+)", re.IGNORECASE)


def hide_shapes(text: str) -> str:
    """The text without anything that looks like a secret."""
    for mark, pattern in SHAPES:
        if mark in text:
            text = pattern.sub(HIDDEN, text)
    lower = text.lower()
    if any(mark in lower for mark in ASSIGNED_MARKS):
        text = ASSIGNED.sub(_hide_value, text)
        text = OPTION.sub(_hide_value, text)
    return COOKIE.sub(_hide_value, text) if "cookie" in lower else text


def _hide_value(found: re.Match[str]) -> str:
    value = found[2]
    if found[1] == "token:" and value in OWN_VERBS:  # the event names of the daemon, not a secret
        return found[0]
    opening = re.match(r"\\{0,7}[\"']?", value)
    return found[1] + (opening[0] if opening else "") + HIDDEN


# All together ------------------------------------------------------------------------------------------------------


def redact(value: Any, depth: int = 0) -> Any:
    """A copy without secrets, for logs and the audit. Values nested too deep are left out."""
    if isinstance(value, str):
        return _text(value, depth)
    if isinstance(value, int | float | bool | None):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return _text(bytes(value).decode("utf-8", "backslashreplace"), depth)
    if depth >= DEPTH_LIMIT:
        return "[nested too deep]"
    if isinstance(value, Mapping):
        return _mapping(value, depth)
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(inner, depth + 1) for inner in value]
    return _text(str(value), depth)


def _mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, inner in value.items():
        plain = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
        name = _text(plain, DEPTH_LIMIT)
        if name in shown:
            name += f" {len(shown)}"  # two hidden names must not become one entry
        hidden = names_a_secret(plain) and not _is_not_secret_value(plain, inner)
        shown[name] = HIDDEN if hidden else redact(inner, depth + 1)
    return shown


def _text(text: str, depth: int) -> str:
    if depth < DEPTH_LIMIT and text[:100].lstrip()[:1] in ("{", "["):
        text = _json(text, depth)
    return hide_shapes(text)


def _json(text: str, depth: int) -> str:
    """JSON inside a text is redacted as a structure; it is rewritten only if it held a secret."""
    try:
        inner = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    shown = redact(inner, depth + 1)
    return text if shown == inner else msgspec.json.encode(shown).decode()
