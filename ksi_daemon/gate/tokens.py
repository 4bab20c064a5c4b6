"""Secrets that agents prove themselves with: made, digested, recognised. Never stored, never compared byte by byte."""

import hashlib
import re
import secrets
from typing import Literal

PREFIX: dict[str, str] = {"token": "ksi_", "session": "ksi_s_"}
SHAPE = re.compile(r"ksi_(?:s_)?[A-Za-z0-9_-]{43}")
AGENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_secret(kind: Literal["token", "session"]) -> str:
    """256 random bits behind a prefix that tells people, and redaction, what it is."""
    return PREFIX[kind] + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """What is kept. The secret has full entropy, so a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).hexdigest()
