"""The docs say everything and nothing untrue: what exists is documented, links lead somewhere, examples work."""

import difflib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

import ksi_client.errors
from ksi_client.command import app as command
from ksi_client.command import fault
from ksi_client.paths import connectable
from ksi_daemon import config, daemon, errors, handler
from ksi_daemon.core import CORE
from ksi_daemon.hygiene import strict_json
from ksi_daemon.operator_socket import server as operator_socket
from ksi_daemon.operator_socket import unfinished_lines
from ksi_daemon.plugin_host import health_check, loader, running_plugin, watchdog
from ksi_daemon.routing import bus, router, slow_readers
from ksi_daemon.testing import running
from ksi_daemon.workers import supervisor
from scripts.reference.__main__ import FOLDER, PAGES
from scripts.reference.commands import verbs
from tests.cases import case

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WRITTEN = sorted([*DOCS.glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))])
ALL = [*WRITTEN, *sorted(FOLDER.glob("*.md"))]
VERBS = dict(verbs())
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMESPACES = sorted({event.partition(":")[0] for plugin, _ in CORE for event in [*plugin.handlers, *plugin.notices]})
NOT_EVENTS = {"mcp:tools_listed", "system:nope"}  # an example of an unknown event
CORE_EVENT = re.compile(rf"\b(?:{'|'.join(NAMESPACES)}):[a-z_]+\b")


Kind = TypeVar("Kind")


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of one language on a page."""
    return [body for found, body in FENCE.findall(text_of(name)) if found == language]


def marked(name: str, mark: str) -> str:
    """The block after the comment `<!-- test: mark -->`."""
    after = text_of(name).partition(f"<!-- test: {mark} -->\n")[2]
    found = FENCE.match(after)
    assert found, f"{name} has no block marked {mark!r}"
    return found[2]


@pytest.fixture(scope="module")
def socket_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a real daemon."""
    var_dir = tmp_path_factory.mktemp("hub") / "var"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KSI_")}
    places = {"KSI_VAR_DIR": str(var_dir), "KSI_CONFIG": str(var_dir.parent / "ksi.toml"), "KSI_PORT": "0"}
    process = subprocess.Popen([sys.executable, "-m", "ksi_daemon"], env=kept | places, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert b"is ready" in process.stdout.readline()
        yield var_dir / "run" / "ksi.sock"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


def test_the_readme_says_why_each_library_is_used() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Why these libraries")[2]
    shown = " ".join(line.split("|")[2] for line in table.splitlines() if line.startswith("|")).lower()
    names = [re.split(r"[^a-z0-9-]", requirement.lower())[0] for requirement in needed]
    shown += " ".join(f" tree-sitter-{language}" for language in re.findall(r"tree-sitter-|(?<= )-(\w+)", shown))
    assert [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", shown)] == []


class TestReference:
    def test_a_generated_page_is_up_to_date(self) -> None:
        for name in PAGES:
            with case(name):
                there, fresh = (FOLDER / name).read_text(encoding="utf-8"), PAGES[name]()
                difference = difflib.unified_diff(
                    there.splitlines(), fresh.splitlines(), name, "fresh", lineterm="", n=0
                )
                assert there == fresh, "run scripts/docs\n" + "\n".join(list(difference)[:20])

    def test_a_generated_page_comes_out_the_same_everywhere(self) -> None:
        for name in PAGES:
            with case(name):
                fresh = PAGES[name]()
                assert fresh == PAGES[name]()
                assert str(ROOT) not in fresh
                assert str(Path.home()) + "/" not in fresh

    async def test_every_event_and_notice_of_the_daemon_is_there(self) -> None:
        page = text_of("reference/events.md")
        async with running() as hub:
            events = (await hub.call("system:discover"))["events"]
        for event, about in events.items():
            heading = f"### {event}\n" if about["kind"] == "call" else f"| `{event}` | {about['summary']} |"
            assert heading in page, event
        assert {event.partition(":")[0] for event in events} == set(NAMESPACES)
        assert [name for name in NAMESPACES if f"\n### {name}:" not in page] == []

    def test_every_setting_is_there_with_its_variable(self) -> None:
        page = text_of("reference/settings.md")
        for name in config.Settings.model_fields:
            variable = "" if name in config.FILE_ONLY else f"`KSI_{name.upper()}`"
            assert f"| `{name}` | {variable} |" in page

    def test_every_error_code_and_exit_code_is_there(self) -> None:
        page = text_of("reference/errors.md")
        for kind in errors.KsiError.__subclasses__():
            assert f"| `{kind.code}` | {kind.status} |" in page, kind
        for start in _subclasses(errors.StartError):
            assert f"\n| {start.exit_code} | " in page, start
        exits = {kind.exit_code for kind in _subclasses(ksi_client.errors.KsiError)}
        exits |= {number for name, number in vars(fault).items() if name.isupper()}
        assert [number for number in sorted(exits) if f"\n| {number} | " not in page] == []

    def test_every_code_of_a_subclass_of_an_error_is_there(self) -> None:
        page = text_of("reference/errors.md")
        assert [kind for kind in _subclasses(errors.KsiError) if f"| `{kind.code}` | {kind.status} |" not in page] == []

    def test_every_verb_is_there_with_its_help(self) -> None:
        page = text_of("reference/commands.md")
        assert {f"ksi {name}" for name in command.VERBS} <= set(VERBS)
        for verb, help_text in VERBS.items():
            assert f"## {verb}\n\n```text\n{help_text}\n```" in page


class TestPages:
    def test_every_relative_link_leads_somewhere(self) -> None:
        for page in ALL:
            text = FENCE.sub("", page.read_text(encoding="utf-8"))
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if "://" in target:
                    continue
                path, _, anchor = target.partition("#")
                linked = (page.parent / path).resolve() if path else page
                assert linked.exists(), f"{page.name} links to {target}, which does not exist"
                if anchor:
                    assert anchor in _anchors(linked), f"{page.name} links to {target}: no such heading"

    def test_every_event_a_page_names_exists(self) -> None:
        known = text_of("reference/events.md")
        unknown = [
            (page.name, event)
            for page in ALL
            for event in CORE_EVENT.findall(page.read_text(encoding="utf-8"))
            if f"### {event}\n" not in known and f"| `{event}` |" not in known and event not in NOT_EVENTS
        ]
        assert unknown == []

    def test_every_variable_a_page_names_is_a_setting(self) -> None:
        known = (
            {f"KSI_{name.upper()}" for name in config.Settings.model_fields}
            | config.NOT_SETTINGS
            | config.GIVEN_TO_AGENTS
            | {"KSI_NAME", "KSI_NAME_FIELD"}
        )
        unknown = {
            page.name: set(re.findall(r"\bKSI_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8"))) - known
            for page in ALL
        }
        assert {page: names for page, names in unknown.items() if names} == {}

    def test_every_command_a_page_shows_exists_with_its_options(self) -> None:
        for page in ALL:
            for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
                if language == "console":
                    for words in _commands(body):
                        with case(page.name, words):
                            _assert_exists(words)

    def test_it_names_every_file_of_the_daemon_rightly(self) -> None:
        for page in WRITTEN:
            with case(page):
                for name in re.findall(r"`(ksi_(?:daemon|client)/[\w/.]+)`", page.read_text(encoding="utf-8")):
                    made_by_the_wheel = name.startswith("ksi_daemon/shipped_plugins")
                    assert made_by_the_wheel or (ROOT / name).exists(), f"{page.name} names {name}"


class TestNumbers:
    """A limit that a page states is the one in the code."""

    def test_of_the_socket(self) -> None:
        page = text_of("socket.md")
        for sentence in (
            f"| one line | {operator_socket.LINE_LIMIT_BYTES:,} bytes |",
            f"| unfinished lines of all connections together | {unfinished_lines.ALL_UNFINISHED_LIMIT_BYTES / 1e6:g} MB |",
            f"| nesting of `data` | {strict_json.NESTING_LIMIT} |",
            f"`result_limit_bytes` ({config.Settings().result_limit_bytes:,})",
            f"| calls under way on one connection | {operator_socket.IN_FLIGHT_LIMIT} |",
            f"| calls under way of one plugin | {router.CALLS_LIMIT:,} |",
            f"(1,000 by default), or {bus.WAITING_LIMIT_BYTES / 1e6:g} MB",
            f"| patterns of one connection | {bus.PATTERNS_LIMIT} |",
            f"cause each other | {router.DEPTH_LIMIT} deep |",
            f"`notice_inbox` of them ({config.Settings().notice_inbox:,} by default)",
            f"more than {slow_readers.UNREAD_LIMIT_BYTES / 1e6:g} MB of answers",
            f"if that lasts {slow_readers.UNREAD_LIMIT_S:g} seconds",
            f"{slow_readers.ALL_UNREAD_LIMIT_BYTES / 1e6:g} MB over all connections",
            f"more than {bus.ALL_WAITING_LIMIT_BYTES / 1e6:g} MB of notices",
            f"has read nothing for {slow_readers.GRACE_S:g} second ",
            f"for up to {daemon.DRAIN_S:g} seconds",
        ):
            assert sentence in page

    def test_of_plugins(self) -> None:
        page = " ".join(text_of("plugins.md").split())
        for sentence in (
            f"`call_timeout_s` ({config.Settings().call_timeout_s:g} s)",
            f"end {router.DEPTH_LIMIT} deep with `too_deep`",
            f"It has {health_check.LIMIT_S:g} seconds",
            f"and every {loader.HEALTH_EVERY_S:g} seconds",
            "after {:g}, {:g}, {:g} and then {:g} seconds".format(*supervisor.PAUSES_S),
            f"Starting may take {running_plugin.START_LIMIT_S:g} seconds, stopping {running_plugin.STOP_LIMIT_S:g}",
            f"finish its calls for up to {loader.DRAIN_S:g} seconds",
            f"after {watchdog.BLOCKED_S:g} seconds it is interrupted",
            f"(at most {bus.WAITING_LIMIT_BYTES / 1e6:g} MB)",
            f"at most {handler.TOOL_NAME_LIMIT} characters",
            f"at most {handler.SCHEMA_DEPTH_LIMIT} deep, have at most {handler.SCHEMA_PARTS_LIMIT:,} parts"
            f" and {handler.SCHEMA_LIMIT_BYTES:,} bytes",
        ):
            assert sentence in page

    def test_of_operators(self) -> None:
        page = text_of("operators.md")
        assert f"those under way have {daemon.DRAIN_S:g} seconds" in page
        assert f"After {daemon.EXIT_AT_THE_LATEST_S:g} seconds it ends" in page


class TestThePluginOfTheGuide:
    async def test_it_loads_and_does_what_the_guide_shows(self, tmp_path: Path) -> None:
        folder = _write_plugin(tmp_path, "shelf")
        async with running(folder) as hub:
            assert await hub.call("shelf:add", title="Emma") == {"title": "Emma", "lent_to": None}
            hub.subscribe("state:changed")
            assert await hub.call("shelf:lend", title="Emma", to="Ada") == {"title": "Emma", "lent_to": "Ada"}
            assert (await hub.next_notice()).data["key"] == "last_lent"
            kept = await hub.call("state:get", namespace="shelf", key="last_lent")
            assert kept["value"] == "Emma"
            exported = await hub.call("shelf:export")
            assert Path(exported["path"]).read_text(encoding="utf-8") == "Emma\n"
            shown = await hub.call("plugin:inspect", name="shelf")
            assert shown["summary"] == "Shelf: the books somebody lent, and who has them."
            assert shown["database"]["version"] == 2

    async def test_its_test_passes(self, tmp_path: Path) -> None:
        await _tests_of(tmp_path, "shelf").test_a_lent_book_cannot_be_lent_again()


class TestThePluginThatActsByItself:
    async def test_its_tests_pass(self, tmp_path: Path) -> None:
        tests = _tests_of(tmp_path, "inbox")
        (tmp_path / "watched").mkdir()
        await tests.test_a_new_file_is_announced(tmp_path / "watched")
        await tests.test_a_missing_folder_is_a_failed_part(tmp_path / "watched")

    async def test_its_settings_are_those_that_the_guide_shows(self, tmp_path: Path) -> None:
        (shown,) = [table for table in blocks("plugins.md", "toml") if "[plugins.inbox]" in table]
        tables = tomllib.loads(shown)["plugins"]
        async with running(_write_plugin(tmp_path, "inbox"), plugin_settings=tables, raise_failures=False) as hub:
            rows = {row["name"]: row["value"] for row in (await hub.call("config:show"))["settings"]}
            assert {f"plugins.inbox.{name}": value for name, value in tables["inbox"].items()}.items() <= rows.items()


class TestTheSessionsOfTheSocketPage:
    def test_each_is_answered_as_shown(self, socket_file: Path) -> None:
        sessions = blocks("socket.md", "session")
        assert len(sessions) >= 4
        for session in sessions:
            with connectable(socket_file) as address, socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(20)
                connection.connect(address)
                _replay(session, connection)

    def test_the_lines_given_to_socat_are_answered_as_shown(self, socket_file: Path) -> None:
        shown = re.findall(r"^\$ echo '(.+)' \| socat .*\n(\{.*\})$", text_of("socket.md"), re.MULTILINE)
        assert shown
        for request, answer in shown:
            with connectable(socket_file) as address, socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(20)
                connection.connect(address)
                _replay(f"> {request}\n< {answer}\n", connection)


def _replay(session: str, connection: socket.socket) -> None:
    """Send each line marked `>`, then read as many lines as are marked `<`; those may come in any order."""
    with connection.makefile("rwb") as lines:
        for request, answers in re.findall(r"^> (.*)\n((?:< .*\n)*)", session, re.MULTILINE):
            lines.write(request.encode() + b"\n")
            lines.flush()
            expected = [answer.removeprefix("< ") for answer in answers.splitlines()]
            came = [lines.readline().decode().rstrip("\n") for _ in expected]
            for answer in expected:
                form = re.escape(answer).replace("…", '[^"]*')
                matching = [line for line in came if re.fullmatch(form, line)]
                assert matching, f"{request}\nshown: {answer}\ncame: {came}"
                came.remove(matching[0])


def _write_plugin(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "__init__.py").write_text(marked("plugins.md", f"plugin {name}"), encoding="utf-8")
    return folder


def _tests_of(parent: Path, name: str) -> Any:
    file = _write_plugin(parent, name) / f"test_{name}.py"
    file.write_text(marked("plugins.md", f"test of {name}"), encoding="utf-8")
    return _imported(file)


def _imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("test_shelf_of_the_guide", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _subclasses(kind: type[Kind]) -> list[type[Kind]]:
    """All classes below a class, however deep."""
    return [found for child in kind.__subclasses__() for found in (child, *_subclasses(child))]


def _anchors(page: Path) -> set[str]:
    """The ids GitHub gives to headings: lower case, without punctuation, spaces as dashes."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _commands(body: str) -> Iterator[list[str]]:
    """The `ksi` commands of a console block, as words."""
    for line in body.splitlines():
        found = re.match(r"\$ (?:KSI_\w+=\S+ )*(?:\./scripts/)?ksi (.*)", line)
        if found:
            yield found[1].partition(" # ")[0].split()


def _assert_exists(words: list[str]) -> None:
    verb = "ksi"
    for word in words:
        if f"{verb} {word}" not in VERBS:
            break
        verb = f"{verb} {word}"
    assert verb != "ksi" or words[0].startswith("-"), f"no such verb: ksi {' '.join(words)}"
    for option in (word.partition("=")[0] for word in words if word.startswith("-") and word != "-"):
        assert re.search(rf"(?<![\w-]){re.escape(option)}\b", VERBS[verb]), f"{verb} has no {option}"
