"""A failure inside a test that loops over cases names its case."""

from collections.abc import Iterator
from contextlib import contextmanager

REPR_LIMIT = 200  # characters of each value


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Whatever is raised inside carries a note with these values; pytest prints it below the assertion."""
    try:
        yield
    except BaseException as error:  # pytest.fail and "DID NOT RAISE" are not an Exception
        error.add_note("case: " + ", ".join(repr(value)[:REPR_LIMIT] for value in values))
        raise
