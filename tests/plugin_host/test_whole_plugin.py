"""The fixture plugin that uses every part of the plugin API, at work: what it does together, not each part on its own."""

from pathlib import Path

import pytest

from ksi_daemon.errors import NotFound
from ksi_daemon.plugin import Home
from ksi_daemon.testing import TestHub, running
from tests.agents_at_work import rows

STATION = Path(__file__).parents[1] / "whole_plugin" / "station"


def home_of(hub: TestHub) -> Home:
    return hub.hub.loader.running["station"].owner.home


async def test_it_measures_keeps_announces_and_says_how_it_is() -> None:
    async with running(STATION, plugin_settings={"station": {"place": "Oslo", "highest": 30}}) as hub:
        with pytest.raises(NotFound):
            await hub.call("station:latest")
        hub.subscribe("station:measured", "state:changed")
        for value in (20, 35):
            (home_of(hub).folder / "sensor.txt").write_text(str(value), encoding="utf-8")
            events = {(await hub.next_notice()).event, (await hub.next_notice()).event}
            assert events == {"station:measured", "state:changed"}
        assert await hub.call("station:latest") == {"place": "Oslo", "value": 35}
        assert (await hub.call("state:get", namespace="station", key="latest"))["value"] == 35
        found = await rows(hub, event="station:record")
        assert {(row["principal"], row["details"]["plugin"]) for row in found} == {("plugin", "station")}
        (part,) = (await hub.call("system:health"))["plugins"]["station"]["parts"]
        assert (part["state"], part["reason"]) == ("failed", "it measured 35 degrees")


async def test_a_broken_sensor_fails_the_test_that_waits_and_only_the_work() -> None:
    async with running(STATION) as hub:
        hub.subscribe("station:measured")
        (home_of(hub).folder / "sensor.txt").write_text("warm", encoding="utf-8")
        with pytest.raises(ValueError, match="warm"):
            await hub.next_notice()
        shown = await hub.call("plugin:inspect", name="station")
        assert shown["background"][0]["failed"] == 1
        assert "int(text)" in shown["errors"][0]["traceback"]
        assert shown["calls"] == ["state:set"]
        (home_of(hub).folder / "sensor.txt").write_text("5", encoding="utf-8")
        assert (await hub.next_notice()).data == {"value": 5}
