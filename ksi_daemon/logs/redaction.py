"""Redacts secrets in values before they are logged, audited or shown: by the name of a field, or beside it, and by the shape of the text.

A secret of no known shape under or beside no known name cannot be recognised (docs/audit.md).

Quantifiers are bounded or possessive where backtracking could be slow, so that long texts are redacted quickly. In doubt text is
redacted: too much is a nuisance, too little a leak.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

HIDDEN = "[redacted]"
DEPTH_LIMIT = 8

# By name -----------------------------------------------------------------------------------------------------------

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
SECRET_WORDS = frozenset({
    "apikey", "auth", "authorization", "bearer", "cookie", "cookies", "cred", "credential", "credentials", "creds", "csrf", "jwt", "otp",
    "pass", "passcode", "passcodes", "passphrase", "passwd", "password", "passwords", "pin", "pw", "pwd", "secret", "secrets", "token",
    "tokens", "totp",
})  # fmt: skip
SECRET_ENDS = ("apikey", "passcode", "passphrase", "passwd", "password", "secret", "token")  # PGPASSWORD, authtoken
KEY_WORDS = frozenset({
    "access", "api", "client", "encryption", "hmac", "master", "private", "secret", "service", "session", "signing", "ssh",
})  # fmt: skip
# Words after a secret's name that mean a property of the secret, not the secret.
ABOUT_WORDS = frozenset({
    "at", "bytes", "count", "created", "expires", "file", "id", "ids", "kind", "length", "limit", "max", "min", "name", "path",
    "prefix", "revoked", "s", "saved", "source", "ttl", "type", "used", "version",
})  # fmt: skip


# `{"key": "db_password", "value": …}`: the secret is beside its name, under one of the second kind of words.
NAME_WORDS = frozenset({
    "attribute", "env", "field", "header", "k", "key", "label", "name", "namespace", "option", "param", "parameter", "property", "setting",
    "variable",
})  # fmt: skip
VALUE_WORDS = frozenset({"content", "contents", "default", "v", "val", "value", "values"})
PAIR_NAME = re.compile(r"-{0,2}[A-Za-z_][A-Za-z0-9_.-]{0,80}:?")  # `Authorization`, `--password`; not an event's name


@functools.lru_cache(maxsize=4096)
def names_a_secret(name: str) -> bool:
    """Whether a field of this name holds a secret: `api_key`, `accessToken`, `X-Auth-Token`; not `token_id`, not `key`."""
    words = [word.lower() for word in WORD.findall(name[:200])]
    if not words or words[-1] in ABOUT_WORDS:
        return False
    if any(word in SECRET_WORDS or word.endswith(SECRET_ENDS) for word in words):
        return True
    return any(word in KEY_WORDS and after in ("key", "keys") for word, after in itertools.pairwise(words))


@functools.lru_cache(maxsize=4096)
def _last_word(name: str) -> str:
    words = WORD.findall(name[:200])
    return words[-1].lower() if words else ""


def _ends_with_a_secret(name: str) -> bool:
    """Stricter than `names_a_secret`, for what may be one of a list of names: `db_password`, not `ksi_token_create`."""
    words = WORD.findall(name[:200].rstrip(":0123456789_-"))
    return (
        names_a_secret(name)
        and bool(words)
        and names_a_secret(" ".join(words[-2:] if words[-1].lower() in ("key", "keys") else words[-1:]))
    )


def _begins_a_pair(item: Any, index: int, length: int) -> bool:
    """Whether the next item of a list is the secret that this one names: in `["--password", …]`, `["Authorization", …]`."""
    if isinstance(item, bytes):
        item = item.decode("utf-8", "replace")
    if not isinstance(item, str) or not PAIR_NAME.fullmatch(item):
        return False
    is_name = item.startswith("-") or (index % 2 == 0 and length % 2 == 0)
    return is_name and _ends_with_a_secret(item)


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
    r"|passcode|(?:access|refresh|auth|id|session|bearer)[_-]?token|(?<![A-Za-z])(?:token|pwd|pw|pass|auth|pin|t?otp|creds?))"
    rf"{QUOTE}\s{{0,3}}(?:=>|[:=])\s{{0,3}}+(?:\\{{0,7}}[\"']?(?:basic|bearer|digest|token)\s{{1,3}}+)?+)({VALUE})",
    re.IGNORECASE,
)
OWN_VERBS = frozenset({"create", "list", "revoke", "revoked", "rotate", "*"})
ASSIGNED_MARKS = ("auth", "pass", "pwd", "pw", "secret", "cred", "key", "token", "pin", "otp")
OPTION = re.compile(
    r"(--?(?:[a-z0-9]{1,30}[-_]){0,3}(?:password|passwd|passphrase|passcode|pwd|pw|token|secret|api-?key|access-?key|auth)"
    r"[ \t]{1,20}+)(?!\[redacted\])(\S+)",
    re.IGNORECASE,
)
COOKIE = re.compile(rf"((?:set-)?cookie{QUOTE}\s{{0,3}}[:=]\s{{0,3}}+)(?!\[redacted\])([^\r\n\"'\\]+)", re.IGNORECASE)
# `"key": "db_password", "value": "…"`, `key=db_password value=…`, `"Authorization", "Basic …"` in running text; each is
# redacted only if the name is that of a secret.
BESIDE = re.compile(
    rf"((?<![A-Za-z])(?:key|name|field|header|variable|option|setting){QUOTE}\s{{0,3}}[:=]\s{{0,3}}{QUOTE}([^\s\"'\\,;&=]{{1,80}}+)"
    rf"{QUOTE}\s{{0,3}}[,&;]?\s{{0,3}}{QUOTE}value{QUOTE}\s{{0,3}}[:=]\s{{0,3}}+)({VALUE})",
    re.IGNORECASE,
)
PAIRED = re.compile(
    rf"([\"'](?=[^\"'\\]{{0,60}}(?i:auth|pass|pw|secret|cred|key|token|pin|otp|cookie))(-{{0,2}}[A-Za-z_][A-Za-z0-9_.-]{{0,60}}+)\\{{0,7}}[\"']\s{{0,3}},\s{{0,3}}b?(?=\\{{0,7}}[\"']))({VALUE})"
)


def hide_shapes(text: str) -> str:
    """The text without anything that looks like a secret."""
    for mark, pattern in SHAPES:
        if mark in text:
            text = pattern.sub(HIDDEN, text)
    lower = text.lower()
    if any(mark in lower for mark in ASSIGNED_MARKS):
        text = ASSIGNED.sub(_hide_value, text)
        text = OPTION.sub(_hide_value, text)
        text = BESIDE.sub(_hide_named, text)
        text = PAIRED.sub(_hide_paired, text)
    return COOKIE.sub(_hide_value, text) if "cookie" in lower else text


def _hide_value(found: re.Match[str]) -> str:
    value = found[2]
    if found[1] == "token:" and value in OWN_VERBS:  # the event names of the daemon, not a secret
        return found[0]
    return found[1] + _opening(value) + HIDDEN


def _hide_named(found: re.Match[str]) -> str:
    return found[1] + _opening(found[3]) + HIDDEN if names_a_secret(found[2]) else found[0]


def _hide_paired(found: re.Match[str]) -> str:
    return found[1] + _opening(found[3]) + HIDDEN if _ends_with_a_secret(found[2]) else found[0]


def _opening(value: str) -> str:
    opening = re.match(r"\\{0,7}[\"']?", value)
    return opening[0] if opening else ""


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
    if isinstance(value, list | tuple):
        return _sequence(value, depth)
    if isinstance(value, set | frozenset):
        return [redact(inner, depth + 1) for inner in value]
    return _text(str(value), depth)


def _sequence(items: Sequence[Any], depth: int) -> list[Any]:
    shown: list[Any] = []
    secret_is_next = False
    for index, item in enumerate(items):
        shown.append(HIDDEN if secret_is_next and not isinstance(item, bool | None) else redact(item, depth + 1))
        secret_is_next = not secret_is_next and _begins_a_pair(item, index, len(items))
    return shown


def _mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    beside = any(
        isinstance(inner, str)
        and isinstance(key, str)
        and _last_word(key) in NAME_WORDS
        and names_a_secret(inner[:200])
        for key, inner in value.items()
    )
    for key, inner in value.items():
        plain = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
        name = _text(plain, DEPTH_LIMIT)
        if name in shown:
            name += f" {len(shown)}"  # two hidden names must not become one entry
        named = names_a_secret(plain) or (beside and _last_word(plain) in VALUE_WORDS)
        hidden = named and not _is_not_secret_value(plain, inner)
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
