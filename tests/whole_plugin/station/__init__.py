"""Station: a fixture that uses every part of the plugin API, as one plugin would: it measures, keeps, announces and says how it is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ksi_daemon.plugin import (
    Annotations,
    Context,
    Dialect,
    Failure,
    Field,
    HealthPart,
    Home,
    KsiError,
    NotFound,
    Nothing,
    Notice,
    Params,
    Plugin,
    PluginSettings,
    Result,
    Retrieval,
    View,
    ViewTool,
    in_thread,
)


class StationSettings(PluginSettings):
    place: str = Field("here", min_length=1, description="Where the station is.")
    highest: int = Field(40, ge=0, description="Above this the sensor counts as broken.")
    every_s: float = Field(0.01, gt=0, le=3600, description="How often it measures.")
    api_key: str = Field("", description="Key of the service that it asks.")
    sensors: list[str] = Field(["north"], description="Names of its sensors.")


def envelope(tool: str, result: object) -> object:
    return {"ok": True, "result": result}


def in_codes(tool: str, error: KsiError) -> Failure | None:
    return Failure({"ok": False, "code": "NO_DATA"}) if error.code == "not_found" else None


plugin = Plugin(
    "station",
    settings=StationSettings,
    calls=["state:set"],
    uses=[Retrieval],
    migrations=["CREATE TABLE measured (id INTEGER PRIMARY KEY, value INTEGER NOT NULL)"],
    view=View(
        "weather", tools=[ViewTool("latest", "station:latest")], dialect=Dialect(success=envelope, failure=in_codes)
    ),
)
plugin.announces("station:measured", "A value was measured; data has it.")


class Value(Params):
    value: int = Field(ge=-100, le=100, description="The value in degrees.")


class Latest(Result):
    place: str
    value: int


@plugin.lifespan
@asynccontextmanager
async def live(home: Home) -> AsyncIterator[None]:
    home.background("measure", lambda: measure(home))
    yield


async def measure(home: Home) -> None:
    """Record a value whenever one lies in the plugin's folder; a text that is no number is a broken sensor."""
    while True:
        text = await in_thread(_take, home)
        if text is not None:
            await home.call("station:record", {"value": int(text)})
            home.notify("station:measured", {"value": int(text)})
        await asyncio.sleep(home.settings(StationSettings).every_s)


def _take(home: Home) -> str | None:
    path = home.folder / "sensor.txt"
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    path.unlink()
    return text


@plugin.handles("station:record", title="Record a value", annotations=Annotations(idempotent=False))
async def record(ctx: Context, params: Value) -> Latest:
    """Keep a value."""
    await ctx.database.execute("INSERT INTO measured (value) VALUES (?)", params.value)
    return Latest(place=ctx.settings(StationSettings).place, value=params.value)


@plugin.handles("station:latest", reads=True, timeout_s=5)
async def latest(ctx: Context, params: Nothing) -> Latest:
    """Return the latest value."""
    row = await ctx.database.fetch_one("SELECT value FROM measured ORDER BY id DESC LIMIT 1")
    if row is None:
        raise NotFound("nothing was measured yet")
    return Latest(place=ctx.settings(StationSettings).place, value=row["value"])


@plugin.on("station:measured")
async def remember(ctx: Context, notice: Notice) -> None:
    await ctx.call("state:set", {"namespace": "station", "key": "latest", "value": notice.data["value"]})


@plugin.health
async def health(home: Home) -> list[HealthPart]:
    row = await home.database.fetch_one("SELECT max(value) AS highest FROM measured")
    highest = 0 if row is None else row["highest"] or 0
    if highest > home.settings(StationSettings).highest:
        return [HealthPart(name="sensor", state="failed", reason=f"it measured {highest} degrees")]
    return [HealthPart(name="sensor")]
