"""Secrets do not reach a log: not by the name they stand under, not by their shape, not at any depth."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksi_daemon.redaction import HIDDEN, redact

SHAPES = [
    "ksi_" + "a1B2" * 10,
    "epi_" + "Zz9-" * 8,
    "Bearer abcdefgh12345678",
    "bearer eyJhbGciOi.eyJzdWIi.sig",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_" + "x" * 36,
    "sk-ant-" + "y" * 40,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\ncut off in the middle",
]
NAMES = [
    "password", "Password", "user_password", "passwd", "passphrase", "secret", "client_secret", "token", "access_token",
    "TOKEN", "authorization", "Authorization", "api_key", "apikey", "apiKey", "x-api-key", "X-Api-Key", "private_key",
    "private-key", "access_key", "credentials", "cookie", "Set-Cookie", "db.password", "accessToken", "dbPassword",
    "clientSecret", "pwd",
]  # fmt: skip
HARMLESS = [
    "tokenizer_name",
    "secretary",
    "passenger",
    "compass",
    "monkey",
    "path",
    "author",
]


@pytest.mark.parametrize("secret", SHAPES, ids=lambda secret: secret[:12])
@pytest.mark.parametrize("around", ["{}", "token is {} ok", '"{}"', "a={}&b=1", "({})", "\n{}\n"])
def test_a_secret_is_known_by_its_shape_wherever_it_stands(secret: str, around: str) -> None:
    shown = str(redact(around.format(secret)))
    core = secret.removeprefix("Bearer ").removeprefix("bearer ").split("\n")[min(1, secret.count("\n"))]
    assert core not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_known_by_the_name_it_stands_under(name: str) -> None:
    for value in ("plain-word", 12345, ["plain-word"], {"inner": "plain-word"}, None):
        assert redact({name: value}) == {name: HIDDEN}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_name_keeps_its_value(name: str) -> None:
    assert redact({name: "plain-word"}) == {name: "plain-word"}


def test_the_password_in_an_address_goes_and_the_rest_stays() -> None:
    shown = redact("postgres://user:hunter2@db.example.org:5432/x")
    assert "hunter2" not in shown
    assert "db.example.org:5432/x" in shown


def places(secret: str) -> st.SearchStrategy[Any]:
    """Structures with the secret planted in some of their leaves, as text, as key, in lists, tuples, bytes and sets."""
    leaf = st.sampled_from(
        [
            secret,
            f"x {secret} y",
            f"{secret}\n",
            secret.encode(),
            (secret,),
            frozenset([secret]),
            {secret: 1},
            "harmless",
            5,
            None,
            True,
        ]
    )
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "token", secret, "b"]), inner, max_size=3)
        ),
        max_leaves=10,
    )


@given(st.sampled_from(SHAPES[:7]).flatmap(lambda secret: st.tuples(st.just(secret), places(secret))))
def test_a_planted_secret_never_comes_out(planted: tuple[str, Any]) -> None:
    secret, value = planted
    assert secret.removeprefix("Bearer ") not in str(redact(value))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text("abc ", max_size=5),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
)
def test_what_holds_no_secret_stays_as_it_is(value: Any) -> None:
    assert redact(value) == value


def test_what_is_nested_past_any_honest_record_is_left_out_and_not_shown() -> None:
    value: Any = "ksi_" + "a1B2" * 10
    for _ in range(5_000):
        value = [value]
    assert "a1B2" not in str(redact(value))


def test_redacting_changes_nothing_in_the_callers_hands() -> None:
    line = {"token": "x", "list": ["ksi_" + "a" * 30]}
    redact(line)
    assert line == {"token": "x", "list": ["ksi_" + "a" * 30]}


@given(st.text(max_size=200))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    assert redact(redact(text)) == redact(text)


def test_a_long_text_made_to_confuse_is_redacted_in_time() -> None:
    import time

    for evil in (
        "-----BEGIN " * 20_000,
        "eyJ" * 60_000,
        "://" + "a" * 100_000,
        "Bearer " * 30_000,
        "ksi_" * 50_000,
        "a:" * 100_000 + "@",
    ):
        started = time.perf_counter()
        redact(evil)
        assert time.perf_counter() - started < 2
