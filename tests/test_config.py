"""Settings: read from the file, then the environment, told where each came from, and refused with every problem at once."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from ksi_daemon.config import CONFIG_LIMIT_BYTES, NEED_RESTART, Settings, SettingsRead, read_settings
from ksi_daemon.errors import BadSettings
from tests.cases import case


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ksi.toml would be."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ksi.toml"


def read(text: str | None, file: Path, **environ: str) -> SettingsRead:
    if text is not None:
        file.write_text(text, encoding="utf-8")
    return read_settings(environ)


def problems(text: str | None, file: Path, **environ: str) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        read(text, file, **environ)
    assert caught.value.exit_code == 78
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_without_file_and_environment_everything_has_its_safe_default(file: Path) -> None:
    """L077: loopback only, no details of inner errors."""
    found = read(None, file)
    assert (found.settings.host, found.settings.port) == ("127.0.0.1", 8080)
    assert found.settings.expose_error_details is False
    assert found.settings.log_level == "info"
    assert found.settings.var_dir == file.parent / "var"
    assert found.config_file == file
    assert {row["source"] for row in found.rows()} == {"default"}


def test_the_environment_goes_before_the_file_and_each_value_says_where_it_came_from(file: Path) -> None:
    found = read("port = 9000\ncall_timeout_s = 5\n", file, KSI_PORT="9001", KSI_LOG_LEVEL="debug")
    rows = {row["name"]: row for row in found.rows()}
    assert (rows["port"]["value"], rows["port"]["source"]) == (9001, "KSI_PORT")
    assert (rows["call_timeout_s"]["value"], rows["call_timeout_s"]["source"]) == (5, "ksi.toml")
    assert (rows["log_level"]["value"], rows["log_level"]["source"]) == ("debug", "KSI_LOG_LEVEL")
    assert (rows["host"]["value"], rows["host"]["source"]) == ("127.0.0.1", "default")


def test_another_file_can_be_named_and_need_not_exist(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    assert read(None, file, KSI_CONFIG=str(other)).as_dict()["config_file_exists"] is False
    other.write_text("port = 9000\n", encoding="utf-8")
    found = read("port = 1\n", file, KSI_CONFIG=str(other))
    assert (found.settings.port, found.config_file) == (9000, other)


def test_a_setting_can_not_be_changed_once_it_is_read() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]


def test_every_setting_has_one_line_of_help() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert 10 <= len(field.description) <= 150
        assert "\n" not in field.description
        assert field.description.endswith(".")
    assert set(Settings.model_fields) >= NEED_RESTART


def test_an_unknown_key_is_named_with_the_nearest_one(file: Path) -> None:
    (problem,) = problems("prot = 1\n", file)
    assert "'prot'" in problem
    assert "did you mean 'port'?" in problem
    (far,) = problems("zzzzzz = 1\n", file)
    assert "ksi config show" in far


def test_an_unknown_variable_is_a_warning_with_the_nearest_one_because_others_may_own_it(file: Path) -> None:
    found = read(None, file, KSI_PROT="1", KSI_TOKEN="x", KSI_DEBUG="1", OTHER="1", KSI_CONFIG="ksi.toml")
    (warning,) = found.warnings(())
    assert "KSI_PROT" in warning
    assert "'KSI_PORT'" in warning


def test_every_problem_of_file_and_environment_is_named_at_once_with_its_source(file: Path) -> None:
    found = problems("prot = 1\ncall_timeout_s = -5\nlog_level = 'loud'\n", file, KSI_PORT="many", KSI_HOST="192.0.2.1")
    assert len(found) == 5
    joined = "\n".join(found)
    for part in ("prot", "call_timeout_s = -5 (from ksi.toml)", "log_level", "KSI_PORT", "KSI_HOST"):
        assert part in joined


def test_only_a_loopback_address_is_taken(file: Path) -> None:
    """L077, promise 7."""
    cases = [
        "0.0.0.0",  # noqa: S104 - refused, not bound
        "::",
        "192.168.1.5",
        "example.org",
        "8.8.8.8",
        "127.0.0.1.evil.org",
        " 127.0.0.1",
        "[::1]",
    ]
    for host in cases:
        with case(host):
            (problem,) = problems(None, file, KSI_HOST=host)
            assert "loopback" in problem


def test_every_loopback_address_is_taken(file: Path) -> None:
    for host in ["127.0.0.1", "::1", "localhost", "127.8.9.10"]:
        with case(host):
            assert read(None, file, KSI_HOST=host).settings.host == host


def test_an_empty_variable_is_a_mistake_and_not_a_value(file: Path) -> None:
    found = problems(None, file, KSI_PORT="", KSI_HOST="", KSI_LOG_LEVEL="")
    assert len(found) == 3
    assert all("is empty" in problem for problem in found)


def test_an_empty_var_dir_is_the_default_one_as_the_lock_sees_it(file: Path) -> None:
    """The lock is taken before the settings are read: both must mean one folder."""
    assert read(None, file, KSI_VAR_DIR="").settings.var_dir == file.parent / "var"


def test_var_dir_is_made_absolute_and_belongs_in_the_environment_only(file: Path, tmp_path: Path) -> None:
    assert read(None, file, KSI_VAR_DIR="here").settings.var_dir == tmp_path / "here"
    assert read(None, file, KSI_VAR_DIR="~/there").settings.var_dir == Path("~/there").expanduser()
    (problem,) = problems("var_dir = 'x'\n", file)
    assert "KSI_VAR_DIR" in problem


def test_plugin_folders_are_relative_to_the_file_that_names_them(file: Path, tmp_path: Path) -> None:
    found = read("plugin_dirs = ['more', '/abs']\nplugins_disabled = ['notes']\n", file)
    assert found.settings.plugin_dirs == (tmp_path / "more", Path("/abs"))
    listed = read(None, file, KSI_PLUGIN_DIRS="/one:/two,/three", KSI_PLUGINS_DISABLED="")
    assert listed.settings.plugin_dirs == (Path("/one"), Path("/two"), Path("/three"))
    assert listed.settings.plugins_disabled == ()


def test_a_value_out_of_range_or_of_another_kind_is_named_with_what_was_given(file: Path) -> None:
    cases = [
        ("port", "-1"), ("port", "65536"), ("port", "1.5"), ("port", "[1]"), ("port", "true"),
        ("call_timeout_s", "0"), ("call_timeout_s", "nan"), ("call_timeout_s", "inf"), ("call_timeout_s", "3601"),
        ("result_limit_bytes", "999"), ("result_limit_bytes", "100000001"),
        ("notice_inbox", "0"), ("monitor_events", "99"), ("log_level", "'verbose'"), ("expose_error_details", "'maybe'"),
        ("plugin_dirs", "'not a list'"), ("plugin_dirs", "[5]"), ("host", "5"), ("port", "2026-01-01"), ("port", "{a=1}"),
    ]  # fmt: skip
    for name, value in cases:
        with case(name, value):
            (problem,) = problems(f"{name} = {value}\n", file)
            assert problem.startswith(f"{name} = ")
            assert "from ksi.toml" in problem
            assert len(problem) < 400


@pytest.mark.parametrize(
    "content",
    [
        b"port = ",
        b"port",
        b"port = 1\nport = 2\n",
        b"\xff\xfe\x00",
        b"port = " + b"[" * 100_000,
        b"\x00",
        b"[" * 10_000,
    ],
    ids=["half-written", "no value", "twice", "no text", "deep", "zero", "brackets"],
)
def test_a_file_that_cannot_be_read_is_a_problem_and_never_a_crash(file: Path, content: bytes) -> None:
    """F09."""
    file.write_bytes(content)
    (problem,) = problems(None, file)
    assert str(file) in problem


def test_a_folder_instead_of_a_file_is_a_problem(file: Path) -> None:
    file.mkdir()
    (problem,) = problems(None, file)
    assert str(file) in problem


def test_a_file_that_is_far_too_large_is_not_even_read(file: Path) -> None:
    """L062."""
    file.write_bytes(b"# " + b"x" * CONFIG_LIMIT_BYTES)
    (problem,) = problems(None, file)
    assert f"{CONFIG_LIMIT_BYTES:,} bytes" in problem


def test_verbose_logs_are_one_setting() -> None:
    """L097."""
    assert read_settings({"KSI_LOG_LEVEL": "debug", "KSI_CONFIG": "/nonexistent"}).settings.log_level == "debug"


def test_a_view_is_a_table_with_patterns_names_and_what_to_hide(file: Path) -> None:
    text = """
[views.ops]
tools = ["system:health", "state:*"]
rename = { "state:get" = "read_value" }
hide = ["state:delete"]
[views.all-of-it]
tools = ["*"]
"""
    views = read(text, file).settings.views
    assert views["ops"].tools == ("system:health", "state:*")
    assert views["ops"].rename == {"state:get": "read_value"}
    assert views["ops"].hide == ("state:delete",)
    assert views["all-of-it"].tools == ("*",)


def test_a_mistake_in_a_view_is_named_with_its_place_and_the_nearest_correct_word(file: Path) -> None:
    cases = [
        ('[views.tools]\ntools = ["*"]', "'tools' is reserved"),
        ('[views.call]\ntools = ["*"]', "'call' is reserved"),
        ('[views.Ops]\ntools = ["*"]', "'Ops' is not a valid view name"),
        ('[views."a/b"]\ntools = ["*"]', "'a/b' is not a valid view name"),
        ('[views.""]\ntools = ["*"]', "'' is not a valid view name"),
        ('[views.ops]\ntoools = ["*"]', "unknown key 'toools'; did you mean 'tools'?"),
        ('[views.ops]\nhide = ["*"]', "views.ops.tools"),
        ("[views.ops]\ntools = []", "views.ops.tools"),
        ('[views.ops]\ntools = "*"', "views.ops.tools"),
        ('[views.ops]\ntools = ["state:g*"]', "'state:g*' must be an event"),
        ('[views.ops]\ntools = ["ksi_state_get"]', "'ksi_state_get' must be an event"),
        ('[views.ops]\ntools = ["*"]\nhide = ["nonsense"]', "'nonsense' must be an event"),
        ('[views.ops]\ntools = ["*"]\nrename = {"state:*" = "a"}', "'state:*' must be the name of one event"),
        ('[views.ops]\ntools = ["*"]\nrename = {"state:get" = "a b"}', "'a b' is not a valid tool name"),
        ('[views.ops]\ntools = ["*"]\nrename = {"state:get" = "ksi_state_set"}', "not the beginning ksi_"),
        ('[views.ops]\ntools = ["*"]\nrename = {"state:get" = "a", "state:set" = "a"}', "two events are named 'a'"),
        ('[views.ops]\ntools = ["state:get"]\nrename = {"state:gett" = "a"}', "did you mean 'state:get'?"),
        ('[views.ops]\ntools = ["state:*"]\nhide = ["system:health"]', "'system:health' is renamed or hidden, but not"),
        ('[views.ops]\ntools = ["*"]\nrename = {"state:get" = "a"}\nhide = ["state:*"]', "both renamed and hidden"),
        ("views = 5", "views = 5 (from ksi.toml)"),
        ("[views]\nops = 5", "views.ops = 5 (from ksi.toml)"),
    ]
    for text, expected in cases:
        with case(text):
            (problem,) = problems(text, file)
            assert expected in problem
            assert problem.startswith("views")
            assert "(from ksi.toml)" in problem


def test_views_can_be_set_in_the_file_only(file: Path) -> None:
    (problem,) = problems(None, file, KSI_VIEWS='{"ops": {"tools": ["*"]}}')
    assert "only ksi.toml can hold" in problem
