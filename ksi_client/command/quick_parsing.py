"""Keeps pydantic out of commands that do not need it: typer would load it (100 ms) to turn text into text.

Relies on typer's `get_runtime_param`. If a later typer no longer calls it, parsing is only slower.
"""

from collections.abc import Callable
from typing import Any


def quick(parameters: list[Any]) -> list[Any]:
    """Skip the conversion of values that already have the right type; typer converts the others."""
    for parameter in parameters:
        full = getattr(parameter, "get_runtime_param", None)
        if full is not None and not isinstance(full, _Quick):
            parameter.get_runtime_param = _Quick(full)
    return parameters


class _Quick:
    """Replaces a parameter's converter, and the method that returns it."""

    def __init__(self, full: Callable[[], Any]) -> None:
        self._full = full

    def __call__(self) -> "_Quick":
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command function wants it."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if not several and value is param.default:
            return value
        annotation = param.type_descriptor.annotation
        if annotation is str and isinstance(value, str):
            return value
        if annotation == list[str] and not isinstance(value, str):
            return list(value)
        return self._full().coerce(value, param=param, ctx=ctx)
