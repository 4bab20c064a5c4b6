"""Thousands of spoilt requests through one connection: each is answered, none breaks anything."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.live.daemon_process import Daemon, short_folder
from tests.live.storms import GOOD_REQUESTS, mutated_lines, throw_lines


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    """One daemon for all of this file: that it lives through everything is the point."""
    with short_folder() as folder:
        daemon = Daemon(folder).start()
        try:
            yield daemon
            assert daemon.stop() == 0
            assert "Traceback" not in daemon.errors
        finally:
            daemon.end()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_thousands_of_spoilt_requests_get_an_answer_each_and_break_nothing(shared: Daemon, seed: int) -> None:
    """J07: the long form is `scripts/chaos --mutations 200000`"""
    pid = shared.pid
    seen = throw_lines(shared, mutated_lines(random.Random(seed), 3_000))
    assert seen.answered == seen.sent == 3_000
    assert seen.suspicious == []
    assert shared.alive
    assert shared.call("system:status")["pid"] == pid


json_leaves: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40)
)
json_values: st.SearchStrategy[Any] = st.recursive(
    json_leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({name for request in GOOD_REQUESTS for name in request.get("data", {})})
requests = st.fixed_dictionaries(
    {"event": st.sampled_from([request["event"] for request in GOOD_REQUESTS])},
    optional={
        "data": st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), json_values, max_size=4),
        "id": json_leaves,
        "correlation_id": json_leaves,
        "timeout_s": st.floats(allow_nan=False, allow_infinity=False) | json_leaves,
    },
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(batch=st.lists(requests, min_size=20, max_size=40))
def test_any_request_of_the_right_outline_gets_an_answer_and_breaks_nothing(
    shared: Daemon, batch: list[dict[str, Any]]
) -> None:
    """J07"""
    lines = [json.dumps(request).encode() for request in batch]
    seen = throw_lines(shared, lines)
    assert seen.answered == len(lines)
    assert seen.suspicious == []


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    batch=st.lists(
        st.binary(min_size=1, max_size=200).map(lambda raw: raw.replace(b"\n", b"") or b"?"), min_size=20, max_size=40
    )
)
def test_any_bytes_at_all_get_an_answer_and_break_nothing(shared: Daemon, batch: list[bytes]) -> None:
    """J07"""
    lines = [line for line in batch if line.strip()]
    seen = throw_lines(shared, lines)
    assert seen.answered == len(lines)
    assert seen.suspicious == []
