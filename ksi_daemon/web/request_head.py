"""Checks the head of a request strictly, before uvicorn's parser reads it.

The parser accepts forms that other programs read differently (bare line feeds, folded headers). What a request asks for is not
judged in this module.
"""

import re
from dataclasses import dataclass

HEAD_END = re.compile(rb"\n\r?\n")  # also without carriage returns, so that such a head is refused and not waited for
METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))

_REQUEST_LINE = re.compile(rb"([!-~]+) /[!-\"$-~]* HTTP/1\.([01])\r\n")
_HEADERS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)*\r\n")
_FRAMING = re.compile(rb"(?i)\n(content-length|transfer-encoding):[ \t]*([^\r]*)")
_UPGRADE = re.compile(rb"(?i)(?<=\n)upgrade:[^\r]*\r\n")
_LENGTH = re.compile(rb"[0-9]{1,15}")


class BadHead(Exception):
    """The head of a request is refused; with the HTTP status to answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A head that was accepted, as the parser should read it."""

    raw: bytes
    body_bytes: int  # 0 when the body is chunked
    chunked: bool


def checked_head(raw: bytes, *, most_headers: int, most_body_bytes: int) -> RequestHead:
    """The head, without a request to change the protocol; raises `BadHead`. `raw` ends with the empty line."""
    request = _REQUEST_LINE.match(raw)
    if request is None:
        raise BadHead(400, "the request line is not METHOD /PATH HTTP/1.1")
    if request[1] not in METHODS:
        raise BadHead(501, "this method is not supported")
    if raw.count(b"\n") - 2 > most_headers:
        raise BadHead(431, f"more than {most_headers} headers")
    if not _HEADERS.fullmatch(raw, request.end()):
        raise BadHead(400, "a header is not NAME: VALUE on one line")
    framing = _FRAMING.findall(raw)
    if len(framing) > 1:
        raise BadHead(400, "the length of the body is stated more than once")
    body_bytes, chunked = 0, False
    for name, value in framing:
        stated = value.rstrip(b" \t")
        if name.lower() == b"content-length":
            if not _LENGTH.fullmatch(stated):
                raise BadHead(400, "the content length is not a number")
            body_bytes = int(stated)
        elif stated.lower() == b"chunked" and request[2] == b"1":
            chunked = True
        else:
            raise BadHead(400, "the only transfer encoding is chunked, in HTTP/1.1")
    if body_bytes > most_body_bytes:
        raise BadHead(413, f"the body is larger than {most_body_bytes} bytes")
    if b"upgrade:" in raw.lower():  # ignored, as HTTP allows; the parser would drop the body of such a request
        raw = _UPGRADE.sub(b"", raw)
    return RequestHead(raw, body_bytes, chunked)
