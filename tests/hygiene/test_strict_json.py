"""Duplicate keys in JSON: refused wherever they are and however they are written; everything else passes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksi_daemon.hygiene.strict_json import refuse_duplicate_keys
from tests.cases import case

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


def test_a_key_twice_in_one_object_is_refused_at_any_level() -> None:
    """J01, J02: also where an escape or a blank hides it from a quick look."""
    for text in (
        b'{"a":1,"a":1}',
        b'{"a":1,"b":{"c":[{"d":1,"e":2,"d":3}]}}',
        b'{"a":1,"\\u0061":2}',
        b'{"a" :1, "a"\t: 2}',
        b'{"":1,"":2}',
        b'{":x":1,":x":2}',
        b'[{"k":1},{"k":1,"k":2}]',
    ):
        with case(text), pytest.raises(ValueError, match="occurs twice in one object"):
            refuse_duplicate_keys(text)


def test_keys_of_different_objects_and_different_case_may_be_alike() -> None:
    for text in (b"{}", b"[]", b'"a"', b'[{"a":1},{"a":1}]', b'{"a":{"a":{"a":1}}}', b'{"a":1,"A":2,"a ":3}'):
        with case(text):
            refuse_duplicate_keys(text)


@given(JSON)
def test_whatever_a_serialiser_writes_passes(value: object) -> None:
    refuse_duplicate_keys(json.dumps(value).encode())
    refuse_duplicate_keys(json.dumps(value, ensure_ascii=False, indent=1).encode())
