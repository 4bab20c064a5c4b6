"""Checks the head of a request strictly, before uvicorn's parser reads it.

The parser accepts forms that other programs read differently (bare line feeds, folded headers). What a request asks for is not
judged in this module.
"""

import re
from dataclasses import dataclass

HEAD_END = re.compile(rb"\n\r?\n")  # also without carriage returns, so that such a head is refused and not waited for
METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))

_REQUEST_LINE = re.compile(rb"([!-~]+) (/[!-\"$-~]*) HTTP/1\.([01])")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
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
    if not raw.endswith(b"\r\n\r\n"):
        raise BadHead(400, "lines end with a carriage return and a line feed")
    request_line, *lines = raw[:-4].split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(request_line)
    if request is None:
        raise BadHead(400, "the request line is not METHOD /PATH HTTP/1.1")
    if request[1] not in METHODS:
        raise BadHead(501, "this method is not supported")
    if len(lines) > most_headers:
        raise BadHead(431, f"more than {most_headers} headers")
    kept, lengths, encodings = [request_line], [], []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
            raise BadHead(400, "a header is not NAME: VALUE on one line")
        match name.lower():
            case b"content-length":
                lengths.append(value.strip(b" \t"))
            case b"transfer-encoding":
                encodings.append(value.strip(b" \t").lower())
            case b"upgrade":
                continue  # ignored, as HTTP allows; the parser would drop the body of such a request
        kept.append(line)
    if len(lengths) + len(encodings) > 1:
        raise BadHead(400, "the length of the body is stated more than once")
    if encodings and (encodings != [b"chunked"] or request[3] == b"0"):
        raise BadHead(400, "the only transfer encoding is chunked, in HTTP/1.1")
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        raise BadHead(400, "the content length is not a number")
    body_bytes = int(lengths[0]) if lengths else 0
    if body_bytes > most_body_bytes:
        raise BadHead(413, f"the body is larger than {most_body_bytes} bytes")
    return RequestHead(b"\r\n".join((*kept, b"", b"")), body_bytes, bool(encodings))
