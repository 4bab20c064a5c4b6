"""config:show and config:reload."""

from pathlib import Path

import pytest

from ksi_daemon.config import Settings
from ksi_daemon.errors import Invalid
from ksi_daemon.testing import TestHub, running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without settings, and an environment without any."""
    import os

    for name in [name for name in os.environ if name.startswith("KSI_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def value(hub: TestHub, name: str) -> object:
    return {row["name"]: row for row in (await hub.call("config:show"))["settings"]}[name]["value"]


async def test_show_lists_every_setting_with_value_default_source_and_help() -> None:
    """K043."""
    async with running(call_timeout_s=7) as hub:
        shown = await hub.call("config:show")
        rows = {row["name"]: row for row in shown["settings"]}
        assert list(rows) == list(Settings.model_fields)
        assert (rows["call_timeout_s"]["value"], rows["call_timeout_s"]["default"]) == (7, 30)
        assert all(row["help"] and row["source"] for row in rows.values())
        assert (shown["ok"], shown["problems"], shown["config_file_exists"]) == (True, [], False)


async def test_reload_applies_what_changed_at_once_and_names_what_waits_for_a_restart(folder: Path) -> None:
    """F09."""
    async with running() as hub:
        hub.subscribe("config:*")
        (folder / "ksi.toml").write_text(
            "result_limit_bytes = 1000\nport = 9999\nlog_level = 'error'\n", encoding="utf-8"
        )
        answer = await hub.call("config:reload")
        assert {"log_level", "port", "result_limit_bytes"} <= set(answer["changed"])
        assert "port" in answer["needs_restart"]
        assert not {"log_level", "result_limit_bytes"} & set(answer["needs_restart"])
        assert hub.hub.router.limits.result_bytes == 1000
        assert hub.hub.log.level == "error"
        notice = await hub.next_notice()
        assert (notice.event, notice.data["needs_restart"]) == ("config:reloaded", answer["needs_restart"])


@pytest.mark.parametrize(
    "content",
    [b"port = ", b"prot = 1\n", b"port = 99999\n", b"\xff\xfe", b"call_timeout_s = -1\n", b"port = " + b"[" * 20_000],
    ids=["half-written", "unknown", "bad value", "no text", "negative", "deep"],
)
async def test_bad_new_settings_are_refused_announced_and_the_old_ones_stay(folder: Path, content: bytes) -> None:
    """F09."""
    async with running(call_timeout_s=7) as hub:
        hub.subscribe("config:*")
        before = hub.hub.control.read
        (folder / "ksi.toml").write_bytes(content)
        with pytest.raises(Invalid, match="old settings stay"):
            await hub.call("config:reload")
        assert hub.hub.control.read is before
        assert hub.hub.router.limits.call_timeout_s == 7
        notice = await hub.next_notice()
        assert notice.event == "config:rejected"
        assert notice.data["problem"]
        assert await value(hub, "call_timeout_s") == 7
