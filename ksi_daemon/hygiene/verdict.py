"""The result of a sanitizer: whether the input is valid, the value to use, and all problems."""

from typing import Any

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One problem: a code for programs, a message for people. Never contains the input."""

    code: str
    message: str


class Sanitized(msgspec.Struct, frozen=True):
    """`value` is the checked value to use; it is empty unless `valid`."""

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


def result_of(value: str, problems: dict[str, str]) -> Sanitized:
    """Valid if there are no problems; `problems` maps codes to messages."""
    errors = tuple(Problem(code, message) for code, message in problems.items())
    return Sanitized(valid=not errors, value="" if errors else value, errors=errors)
