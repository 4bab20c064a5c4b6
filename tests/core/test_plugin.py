"""plugin:list, inspect and reload, as an operator sees them. How loading works inside is tests/plugin_host/test_loader.py."""

from pathlib import Path

import pytest

from ksi_daemon.errors import Conflict, NotFound
from ksi_daemon.plugin import Context, Nothing, Plugin
from ksi_daemon.testing import running
from tests.in_process import Said
from tests.plugin_folders import SOURCE, write_plugin


def sample() -> Plugin:
    plugin = Plugin("sample", migrations=["CREATE TABLE a (x)"])
    plugin.announces("sample:done", "It is done.")

    @plugin.handles("sample:work", reads=True, timeout_s=3)
    async def work(ctx: Context, params: Nothing) -> Said:
        """Work a little."""
        if not await ctx.database.fetch("SELECT 1"):
            raise AssertionError("no rows")
        return Said()

    @plugin.on("state:*")
    async def listen(ctx: Context, notice: object) -> None:
        """Hear."""

    return plugin


async def test_list_shows_every_plugin_and_where_it_came_from() -> None:
    """K043."""
    async with running(sample()) as hub:
        listed = await hub.call("plugin:list")
        rows = {row["name"]: row for row in listed["plugins"]}
        assert list(rows) == sorted(rows)
        assert {name for name, row in rows.items() if row["source"] == "core"} == {
            "agent", "audit", "completion", "config", "conversation", "mcp", "message", "monitor", "permission", "plugin",
            "session", "state", "system", "token",
        }  # fmt: skip
        assert all(row["state"] == "running" and row["summary"] for row in rows.values() if row["source"] == "core")
        assert (rows["sample"]["events"], rows["sample"]["notices"]) == (["sample:work"], ["sample:done"])
        assert listed["folders"]


async def test_inspect_shows_handlers_with_counts_listeners_and_the_database() -> None:
    async with running(sample()) as hub:
        for _ in range(3):
            await hub.call("sample:work")
        with pytest.raises(Exception, match="does not fit"):
            await hub.call("sample:work", wrong=1)
        seen = await hub.call("plugin:inspect", name="sample")
        assert seen["handlers"] == [
            {
                "event": "sample:work",
                "tool": "ksi_sample_work",
                "summary": "Work a little.",
                "reads": True,
                "timeout_s": 3,
                "calls": 4,
                "errors": 1,
            }
        ]
        assert seen["subscriptions"] == [
            {"pattern": "state:*", "delivered": 0, "failed": 0, "dropped": 0, "waiting": 0}
        ]
        assert seen["database"]["version"] == 1
        assert Path(seen["database"]["path"]).name == "sample.db"
        assert seen["database"]["bytes"] > 0
        assert seen["loaded_at"].endswith("Z")
        assert seen["omitted"] == []


async def test_inspect_and_reload_of_a_plugin_that_is_not_there_are_not_found() -> None:
    async with running() as hub:
        for event in ("plugin:inspect", "plugin:reload"):
            with pytest.raises(NotFound, match="nobody"):
                await hub.call(event, name="nobody")


async def test_the_daemons_own_plugins_cannot_be_reloaded() -> None:
    async with running() as hub:
        for name in ("system", "plugin", "state"):
            with pytest.raises(Conflict, match="part of the daemon"):
                await hub.call("plugin:reload", name=name)


async def test_reload_swaps_the_code_keeps_the_counts_and_announces_it(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", SOURCE.format(name="sample", answer="one"))
    async with running(folder) as hub:
        hub.subscribe("plugin:*")
        assert (await hub.call("sample:say"))["text"] == "one"
        write_plugin(tmp_path, "sample", SOURCE.format(name="sample", answer="two"))
        answer = await hub.call("plugin:reload", name="sample")
        assert (answer["name"], answer["state"], answer["events"]) == ("sample", "running", ["sample:say"])
        assert (await hub.call("sample:say"))["text"] == "two"
        (handler,) = (await hub.call("plugin:inspect", name="sample"))["handlers"]
        assert handler["calls"] == 2
        heard = [(await hub.next_notice()).event for _ in range(2)]
        assert "plugin:reloaded" in heard


async def test_a_broken_new_version_is_refused_with_the_reason_and_the_old_one_serves(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "sample", SOURCE.format(name="sample", answer="one"))
    async with running(folder) as hub:
        write_plugin(tmp_path, "sample", "raise ValueError('half an edit')")
        with pytest.raises(Conflict, match=r"half an edit.*stays in use"):
            await hub.call("plugin:reload", name="sample")
        assert (await hub.call("sample:say"))["text"] == "one"
        assert (await hub.call("system:health"))["status"] == "ok"
