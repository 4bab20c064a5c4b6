"""`sanitize_path`: thousands of hostile texts, and what honest ones come back as."""

import itertools
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksi_daemon.errors import KsiError
from ksi_daemon.hygiene.beneath import open_beneath
from ksi_daemon.hygiene.paths import sanitize_path
from tests.cases import case

CLIMBS = [
    "..",
    "../..",
    "a/../..",
    "a/../../b",
    "./..",
    "..//..",
    ".../..",
    "a/b/../../../c",
    "..;",
    "..%00",
    "..\x00",
    ". .",
    ".. ",
    " ..",
]
TARGETS = ["etc/passwd", "secret", "../secret", "", "evil/x", "proc/self/root/etc/passwd"]
PREFIXES = [
    "", "/", "//", "./", "~/", "~root/", "a/", "C:\\", "C:/", "file://", "file:///", "\\\\host\\share\\", "/proc/self/root/", "\x00",
    "\n", "'", '"', " ",
]  # fmt: skip
DISGUISES = [
    lambda text: text,
    lambda text: text.replace("/", "\\"),
    lambda text: text.replace(".", "%2e"),
    lambda text: text.replace(".", "%2E").replace("/", "%2F"),
    lambda text: text.replace("/", "%5c"),
    lambda text: quote(quote(text, safe=""), safe=""),
    lambda text: text.replace(".", "\u2024"),
    lambda text: text.replace("..", "\u2025"),
    lambda text: text.replace(".", "\uff0e").replace("/", "\uff0f"),
    lambda text: text.replace("/", "\u2215"),
    lambda text: text.replace("/", "\u2044"),
    lambda text: text.replace(".", ".\u200b"),
    lambda text: "\u202e" + text,
    lambda text: text + "\x00.md",
    lambda text: text + " ",
    lambda text: text + ".",
    lambda text: text + "'",
    lambda text: text + "/.",
    lambda text: f'"{text}"',
    lambda text: text.replace("/", "//"),
    lambda text: text.replace("/", "/./"),
    lambda text: text + "\r\n",
]  # fmt: skip
HOSTILE = sorted({
    disguise(f"{prefix}{climb}/{target}")
    for prefix, climb, target, disguise in itertools.product(PREFIXES, CLIMBS, TARGETS, DISGUISES)
})  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with something in it, a sibling whose name begins the same, and a secret beside them."""
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "note.md").write_text("inside")
    (tmp_path / "root-evil").mkdir()
    (tmp_path / "root-evil" / "x").write_text("secret")
    (tmp_path / "secret").write_text("secret")
    return root


def is_inside(root: Path, value: str) -> bool:
    real = Path(os.path.realpath(root / value))
    return real == root.resolve() or root.resolve() in real.parents


def test_thousands_of_hostile_paths_lead_nowhere_outside(root: Path) -> None:
    """X01: checked as text, and then opened as they are, without having been checked."""
    assert len(HOSTILE) >= 5_000
    accepted = 0
    for text in HOSTILE:
        for absolute in (False, True):
            result = sanitize_path(text, root, allow_absolute=absolute)
            assert result.valid == (not result.errors)
            if result.valid:
                accepted += 1
                assert is_inside(root, result.value), text
                assert ".." not in result.value.split("/")
            else:
                assert result.value == ""
        try:
            found = open_beneath(root, text)
        except KsiError:
            continue
        try:
            where = os.readlink(f"/proc/self/fd/{found}")
        finally:
            os.close(found)
        assert where.startswith(f"{root}/"), text
    assert accepted < len(HOSTILE) / 10


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(
    st.text(
        alphabet=st.sampled_from("./\\~%2eEfF a\x00\n'\"$`{(:\u2024\uff0e\u2215\u00e9") | st.characters(), max_size=30
    )
)
def test_whatever_is_accepted_stays_inside_and_is_used_as_it_was_checked(text: str) -> None:
    """X01, X04: the value is accepted again unchanged, and only '.' and empty parts were dropped from the text."""
    result = sanitize_path(text, "/srv/root")
    if result.valid:
        assert sanitize_path(result.value, "/srv/root") == result
        parts = [part for part in text.split("/") if part not in ("", ".")]
        assert result.value == ("/".join(parts) or ".")
        assert os.path.normpath(f"/srv/root/{result.value}").startswith("/srv/root")


def test_an_honest_path_comes_back_byte_for_byte(root: Path) -> None:
    """L060, L064, X04."""
    cases = [
        ("note.md", "note.md"),
        ("a/b/note.md", "a/b/note.md"),
        ("./a//b/", "a/b"),
        (".", "."),
        (".hidden/..rc", ".hidden/..rc"),
        ("caf\u00e9/\u65e5\u672c.md", "caf\u00e9/\u65e5\u672c.md"),
        ("cafe\u0301.md", "cafe\u0301.md"),
        ("Meeting at 10:30.md", "Meeting at 10:30.md"),
        ("100%.md", "100%.md"),
        ("it's.md", "it's.md"),
        ("UPPER/lower", "UPPER/lower"),
        ("console.log", "console.log"),
    ]
    for text, value in cases:
        with case(text, value):
            assert sanitize_path(text, root).as_dict() == {"valid": True, "value": value, "errors": []}


def test_each_kind_of_trick_is_named(root: Path) -> None:
    """X01, L064: valid, value, errors."""
    cases = [
        ("", "empty"),
        ("../secret", "path_traversal"),
        ("a/../../secret", "path_traversal"),
        ("/etc/passwd", "absolute_path"),
        ("~/x", "home_folder"),
        ("~root/x", "home_folder"),
        ("a\\b", "backslash"),
        ("a\x00b", "nul"),
        ("a\nb", "invisible"),
        ("a\u202eb", "invisible"),
        ("a/%2e%2e/b", "encoded"),
        ("a%252e", "encoded"),
        ("a\u2024b", "look_alike"),
        ("a\u2215b", "look_alike"),
        ("\ud800", "not_unicode"),
        ("x" * 5_000, "too_long"),
        ("x" * 256, "name_too_long"),
        ("a /b", "edge"),
        (" a", "edge"),
        ("a./b", "edge"),
        ("a'", "quote"),
        ('"a"', "quote"),
        ("con", "device"),
        ("a/NUL.txt", "device"),
        ("com1", "device"),
        ("${HOME}", "shell"),
        ("$(id)", "shell"),
        ("`id`", "shell"),
        ("C:/x", "drive"),
        ("c:\\x", "drive"),
        ("file://x", "drive"),
    ]
    for text, code in cases:
        with case(text, code):
            result = sanitize_path(text, root)
            assert not result.valid
            assert code in {error.code for error in result.errors}
            assert all(error.message for error in result.errors)


def test_everything_that_is_wrong_is_reported_at_once(root: Path) -> None:
    codes = {error.code for error in sanitize_path("../con/x ", root).errors}
    assert codes == {"path_traversal", "device", "edge"}


def test_an_absolute_path_is_allowed_only_where_it_leads_inside(root: Path) -> None:
    """X05: a sibling that shares the beginning of the name is outside."""
    assert sanitize_path(f"{root}/a/note.md", root, allow_absolute=True).value == "a/note.md"
    assert sanitize_path(str(root), root, allow_absolute=True).value == "."
    for outside in (f"{root}-evil/x", "/etc/passwd", f"{root.parent}/secret", "/", f"{root}/../secret"):
        assert not sanitize_path(outside, root, allow_absolute=True).valid
    assert not sanitize_path(f"{root}/a/note.md", root).valid


def test_a_symbolic_link_on_the_way_is_refused(root: Path) -> None:
    """X02."""
    (root / "link").symlink_to(root.parent)
    (root / "a" / "direct").symlink_to("note.md")
    for text in ("link/secret", "link", "a/direct"):
        assert [error.code for error in sanitize_path(text, root).errors] == ["symbolic_link"]
    assert sanitize_path("not/yet/there", root).valid
