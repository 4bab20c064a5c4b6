"""Checks values that become arguments of a program: none can be taken for a flag, and none holds a control character."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from ksi_daemon.errors import Invalid

SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ARGUMENT_CHARACTERS = 2_000  # at most


def flag_or_value(text: str) -> str:
    """The text, unless it holds a control character."""
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError("control characters are not allowed in an argument")
    return text


def value_only(text: str) -> str:
    """The text, unless the program could take it for a flag."""
    if text.startswith("-"):
        raise ValueError("a value must not begin with '-': the program would take it for a flag")
    return flag_or_value(text)


Value = Annotated[str, Field(min_length=1, max_length=ARGUMENT_CHARACTERS), AfterValidator(value_only)]
FlagOrValue = Annotated[str, Field(max_length=ARGUMENT_CHARACTERS), AfterValidator(flag_or_value)]


def checked_model(model: str) -> str:
    """A model's name as an argument."""
    try:
        return value_only(model)
    except ValueError as error:
        raise Invalid(f"the model {model[:100]!r} is not a valid name: {error}") from error


def checked_session(session: str) -> str:
    """The id of a session as an argument."""
    if SESSION.fullmatch(session) is None:
        raise Invalid(f"the session {session[:100]!r} is not a valid id", hint="begin a new conversation")
    return session
