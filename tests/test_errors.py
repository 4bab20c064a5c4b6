"""The tree at the head of errors.py is the tree of classes: names, code words, statuses and exit codes."""

import re

import pytest

from ksi_daemon import errors
from ksi_daemon.errors import Internal, Invalid, KsiError, NotFound, StartError, TooMany

CODES = {
    "invalid", "unauthenticated", "forbidden", "approval_required", "unknown_event", "not_found", "conflict", "too_large",
    "too_many", "cancelled", "internal", "unavailable", "circuit_open", "audit_unavailable", "timed_out", "too_deep",
}  # fmt: skip


def drawn(root: str) -> dict[str, tuple[str, ...]]:
    """The lines below a root of the drawing: class -> what stands beside it."""
    lines = (errors.__doc__ or "").split(f"    {root} ", 1)[1].splitlines()[1:]
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        match = re.match(r" +(?:│ +)?[├└]── (\w+) +(\S+)(?: +(\d+))? {2,}\S", line)
        if match is None:
            break
        found[match[1]] = tuple(part for part in match.groups()[1:] if part)
    return found


def kinds_of(root: type[KsiError]) -> list[type[KsiError]]:
    """Every kind of failure in the module, kinds of kinds too."""
    found = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return found + [deeper for kind in found for deeper in kinds_of(kind)]


def test_every_failed_call_is_drawn_with_its_code_word_and_status() -> None:
    kinds = kinds_of(KsiError)
    assert drawn("KsiError") == {kind.__name__: (kind.code, str(kind.status)) for kind in kinds}
    assert {kind.code for kind in kinds} == CODES
    assert len([kind for kind in kinds if "code" in vars(kind)]) == len(CODES)


def test_a_part_that_rests_is_a_kind_of_unavailable_and_is_drawn_inside_it() -> None:
    """L067."""
    assert issubclass(errors.CircuitOpen, errors.Unavailable)
    lines = (errors.__doc__ or "").splitlines()
    place = next(number for number, line in enumerate(lines) if "── CircuitOpen" in line)
    assert "── Unavailable" in lines[place - 1]
    assert lines[place].startswith("    │   └──")


def test_every_failed_start_is_drawn_with_its_exit_code() -> None:
    assert drawn("StartError") == {kind.__name__: (str(kind.exit_code),) for kind in StartError.__subclasses__()}
    assert {kind.exit_code for kind in StartError.__subclasses__()} == {65, 71, 75, 78}
    assert StartError.exit_code == 1


def test_the_drawing_is_in_the_order_of_the_statuses() -> None:
    statuses = [int(status) for _, status in drawn("KsiError").values()]
    assert statuses == sorted(statuses)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (NotFound("gone"), {"code": "not_found", "message": "gone"}),
        (NotFound("gone", hint="look"), {"code": "not_found", "message": "gone", "hint": "look"}),
        (
            Invalid("bad", fields=[{"field": "a", "problem": "b"}]),
            {"code": "invalid", "message": "bad", "fields": [{"field": "a", "problem": "b"}]},
        ),
        (TooMany("often", retry_after_s=1.5), {"code": "too_many", "message": "often", "retry_after_s": 1.5}),
        (Internal("broke", call_id="x"), {"code": "internal", "message": "broke", "call_id": "x"}),
        (Internal("broke"), {"code": "internal", "message": "broke"}),
    ],
)
def test_an_error_shows_its_hint_and_facts_only_where_there_are_any(error: KsiError, shown: dict[str, object]) -> None:
    assert error.as_dict() == shown
    assert str(error) == error.message
