"""scripts/coverage-table: which claims count, and when the check fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scratch_checkout import ROOT

LISTED = "D001  three digits  (semantics)\nD01  two digits  (reliability)\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("docs", "tests/live", "plugins/weather"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs" / "covered-ids.txt").write_text(f"# a remark\n\n{LISTED}", encoding="utf-8")
    return tmp_path


def table(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, ROOT / "scripts" / "coverage-table", "--root", checkout, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def write_test(checkout: Path, path: str, text: str) -> None:
    (checkout / path).write_text(text, encoding="utf-8")


def test_ids_with_two_and_three_digits_are_different_rows(checkout: Path) -> None:
    write_test(checkout, "tests/test_a.py", 'def test_it():\n    """D001: works."""\n')
    assert table(checkout).returncode == 0
    page = (checkout / "docs" / "coverage.md").read_text(encoding="utf-8")
    assert "| D001 | semantics | three digits | `tests/test_a.py::test_it` |" in page
    assert "| D01 | reliability | two digits | **none** |" in page
    checked = table(checkout, "--check")
    assert checked.returncode == 1
    assert "no test names D01 (two digits)" in checked.stderr
    assert "D001" not in checked.stderr


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        ("tests/live/test_a.py", '"""Holds D001 and D01."""\n\ndef test_it(): ...\n', "tests/live/test_a.py"),
        (
            "tests/test_a.py",
            'class TestAll:\n    """D001, D01"""\n    def test_it(self): ...\n',
            "tests/test_a.py::TestAll",
        ),
        ("plugins/weather/test_a.py", "async def test_d001_and_d01_hold(): ...\n", "test_a.py::test_d001_and_d01_hold"),
    ],
)
def test_a_claim_may_stand_in_a_docstring_or_in_a_name(checkout: Path, path: str, text: str, shown: str) -> None:
    write_test(checkout, path, text)
    assert table(checkout).returncode == 0
    assert table(checkout, "--check").returncode == 0
    assert (checkout / "docs" / "coverage.md").read_text(encoding="utf-8").count(f"{shown}`") == 2


@pytest.mark.parametrize(
    "text",
    [
        '"""D001 and D01, one day."""\n',
        'def helper():\n    """D001 D01"""\n',
        'def test_it():\n    wanted = "D001 D01"\n    # D001 D01\n',
    ],
)
def test_a_promise_without_a_test_a_comment_and_a_string_claim_nothing(checkout: Path, text: str) -> None:
    write_test(checkout, "tests/test_a.py", text)
    assert table(checkout).returncode == 0
    assert table(checkout, "--check").returncode == 1


def test_a_stale_page_fails_the_check_and_the_check_writes_nothing(checkout: Path) -> None:
    write_test(checkout, "tests/test_a.py", 'def test_it():\n    """D001, D01."""\n')
    page = checkout / "docs" / "coverage.md"
    assert table(checkout, "--check").returncode == 1
    assert not page.exists()
    table(checkout)
    write_test(checkout, "tests/test_b.py", 'def test_more():\n    """D01 again."""\n')
    stale = table(checkout, "--check")
    assert stale.returncode == 1
    assert "stale; run scripts/coverage-table" in stale.stderr


@pytest.mark.parametrize(
    "line", ["D001 one space (semantics)", "Z9  no such id  (semantics)", "D001  twice  (semantics)"]
)
def test_a_malformed_list_is_refused_by_line(checkout: Path, line: str) -> None:
    with (checkout / "docs" / "covered-ids.txt").open("a", encoding="utf-8") as listed:
        listed.write(line + "\n")
    refused = table(checkout, "--check")
    assert refused.returncode == 1
    assert "covered-ids.txt:5" in refused.stderr
