"""Thin lists: small, and enough to call every tool rightly at the first attempt."""

import json
import re
from typing import Any

import msgspec

from tests.agents_at_work import limit, rows
from tests.cases import case
from tests.mcp.test_handshakes import show, tools_of
from tests.mcp_hub import serving_mcp

LEFT_OUT = {"ksi_batch_call", "ksi_call_tool", "ksi_raw_event"}  # what they call decides whether a call fits
TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|like "(?:[^"\\]|\\.)*"|[<>]?-?\d*\.\.-?\d*|[<>]-?[\d.]+|\w+|[(){}\[\]:,?|]|-?\d+)'
)


class Signature:
    """A client that knows a tool only from its thin entry: reads the signature and draws arguments from it."""

    def __init__(self, description: str) -> None:
        start = next(at for at in _openings(description) if description.endswith(")"))
        self._tokens = TOKEN.findall(description[start:])
        assert "".join(self._tokens).replace(" ", "") == description[start:].replace(" ", ""), description
        self._at = 0

    def arguments(self, *, optional: bool) -> dict[str, Any]:
        """An object of the signature's members."""
        drawn = self._object(")", optional=optional)
        assert self._at == len(self._tokens)
        return drawn

    def _next(self) -> str:
        self._at += 1
        return str(self._tokens[self._at - 1])

    def _is_next(self, token: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _object(self, closing: str, *, optional: bool) -> dict[str, Any]:
        self._next()
        drawn: dict[str, Any] = {}
        while not self._is_next(closing):
            name = self._next()
            is_optional = self._is_next("?")
            assert self._next() == ":"
            value = self._either()
            if optional or not is_optional:
                drawn[name] = value
            self._is_next(",")
        return drawn

    def _either(self) -> Any:
        """The first of the alternatives."""
        values = [self._type()]
        while self._is_next("|"):
            values.append(self._type())
        return values[0]

    def _type(self) -> Any:
        value = self._plain()
        while self._is_next("["):
            fewest = 1 if self._is_next("]") else int(self._next().partition("..")[0])
            self._is_next("]")
            value = [value] * fewest
        return value

    def _plain(self) -> Any:
        token = self._tokens[self._at]
        if token == "{":
            return self._object("}", optional=True)
        self._at += 1
        if token == "(":
            value = self._either()
            assert self._next() == ")"
            return value
        if token == "[":
            items = []
            while not self._is_next("]"):
                items.append(self._either())
                self._is_next(",")
            return items
        if token.startswith('"'):
            return json.loads(token)
        return self._scalar(token)

    def _scalar(self, kind: str) -> Any:
        limits = []
        while self._at < len(self._tokens) and re.match(r"like |[<>]|-?\d*\.\.", self._tokens[self._at]):
            limits.append(self._next())
        if kind in ("integer", "number"):
            return self._number(limits)
        if kind == "string":
            pattern = json.loads(limits[0].removeprefix("like ")) if limits else None
            return (
                "word"
                if pattern is None
                else next(one for one in ("*", "a:b", "a", "1", "2026-01-31") if re.search(pattern, one))
            )
        return {"boolean": True, "null": None, "object": {}, "any": "value"}[kind]

    def _number(self, limits: list[str]) -> int:
        for number in (1, 0, 100, 1000, -1):
            least = [int(one.split("..")[0] or -(10**9)) for one in limits if ".." in one]
            most = [int(one.split("..")[1] or 10**9) for one in limits if ".." in one]
            above = [float(one[1:]) for one in limits if one.startswith(">")]
            if (
                all(number >= one for one in least)
                and all(number <= one for one in most)
                and all(number > one for one in above)
            ):
                return number
        raise AssertionError(f"no number fits {limits}")


def _openings(description: str) -> list[int]:
    """Where the signature may begin: the opening bracket that the last one closes."""
    depth = 0
    quoted = False
    for at in range(len(description) - 1, -1, -1):
        char = description[at]
        if char == '"':
            quoted = not quoted
        if not quoted and char in ")(":
            depth += 1 if char == ")" else -1
            if depth == 0:
                return [at]
    raise AssertionError(f"no signature in {description!r}")


async def test_a_first_call_made_from_the_thin_entry_alone_fits_the_schema_of_every_tool() -> None:
    """K012 X007: with only what must be sent, and with everything that may be."""
    async with serving_mcp() as hub:
        token = await hub.agent(profile="trusted")
        limit(hub.hub, "trusted", calls_per_minute=None, concurrent_calls=None)
        thin = tools_of(await show(hub, token, **{"x-ksi-handshake": "thin"}))
        assert len(thin) > 20
        for name, entry in thin.items():
            for optional in (False, True):
                arguments = Signature(entry["description"]).arguments(optional=optional)
                with case(name, arguments):
                    reply = await hub.call_2026(token, name, **arguments)
                    assert reply.status_code == 200 or name in LEFT_OUT, reply.text
                    assert "inputSchema" not in reply.text or name == "ksi_help"


async def test_arguments_drawn_from_the_thin_entry_fit_also_the_tools_that_no_agent_sees() -> None:
    """K012"""
    async with serving_mcp() as hub:
        catalogue = hub.service.tools
        for name in catalogue.own_names:
            tool = catalogue.find(name, None)
            assert tool is not None
            for optional in (False, True):
                arguments = Signature(tool.thin.wire["description"]).arguments(optional=optional)
                with case(name, arguments):
                    tool.handler.parse(arguments)


async def test_a_call_that_does_not_fit_would_have_been_noticed() -> None:
    """K012"""
    async with serving_mcp() as hub:
        token = await hub.agent(profile="trusted")
        reply = await hub.call_2026(token, "ksi_message_publish", event="word")
        assert "inputSchema" in reply.text


async def test_a_thin_list_of_the_whole_catalogue_is_at_most_two_fifths_of_the_full_one() -> None:
    """K012"""
    async with serving_mcp() as hub:
        catalogue = hub.service.tools
        everything = [tool for name in catalogue.own_names if (tool := catalogue.find(name, None)) is not None]
        assert len(everything) > 50
        full = len(msgspec.json.encode([tool.full.wire for tool in everything]))
        thin = len(msgspec.json.encode([tool.thin.wire for tool in everything]))
        assert thin <= 0.40 * full


PIECES = re.compile(
    r" ?[^\W\d_]+|[0-9]{1,3}| ?[^\s\w]+|_+|\s+"
)  # as tokenizers cut a text before they count: none is less than a token


async def test_the_tokens_of_a_list_are_estimated_within_a_third_of_its_pieces() -> None:
    """K033: `scripts/eval-handshake` compares the estimate with real tokenizers, which are not installed here."""
    async with serving_mcp() as hub:
        token = await hub.agent(profile="trusted")
        for kind in ("full", "thin"):
            with case(kind):
                shown = tools_of(await show(hub, token, **{"x-ksi-handshake": kind}))
                text = msgspec.json.encode(list(shown.values())).decode()
                listing = (await rows(hub.hub, event="mcp:tools_listed"))[-1]["details"]
                assert listing["handshake"] == kind
                assert 0.98 < listing["bytes"] / len(text.encode()) <= 1
                pieces = len(PIECES.findall(text))
                assert pieces * 2 / 3 < listing["tokens"] < pieces * 4 / 3
