"""The one shape in which a sanitiser answers: usable or not, what to use, and everything that is wrong."""

from typing import Any

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong: a code word for programs, a message for people. Never repeats what was sent."""

    code: str
    message: str


class Sanitized(msgspec.Struct, frozen=True):
    """`value` is what was checked and what must be used; it is empty unless `valid`."""

    valid: bool
    value: str
    errors: tuple[Problem, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For an answer."""
        return {
            "valid": self.valid,
            "value": self.value,
            "errors": [msgspec.to_builtins(error) for error in self.errors],
        }


def judged(value: str, problems: dict[str, str]) -> Sanitized:
    """Valid if there are no problems; these are given as code word and message."""
    errors = tuple(Problem(code, message) for code, message in problems.items())
    return Sanitized(valid=not errors, value="" if errors else value, errors=errors)
