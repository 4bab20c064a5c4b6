"""A plugin that breaks a rule of the plugin API is set aside with a reason that says which, and the rest serves."""

import pytest

from tests.live.daemon_process import PLUGIN_HEAD, Daemon, Refused, until

OK_HANDLER = '''
@plugin.handles("{name}:do")
async def do(ctx: Context, params: Nothing) -> Done:
    """Do it."""
    return Done()
'''


def _with_head(name: str, body: str, arguments: str = "") -> str:
    return PLUGIN_HEAD.format(name=name, arguments=arguments) + body


# plugin name -> (its source, what its reason must say)
BROKEN = {
    "syntax": ("def broken(:\n", "SyntaxError"),
    "tabs": ("if True:\n\tx = 1\n        y = 2\n", "Error"),
    "nothing": ('"""No plugin object."""\n', "has no object named plugin"),
    "wrong_type": ("plugin = 5\n", "has no object named plugin"),
    "wrong_name": (_with_head("other_name", ""), "but its object says"),
    "bad_name": ("from ksi_daemon.plugin import Plugin\nplugin = Plugin('Bad Name')\n", "is not a valid plugin name"),
    "wrong_namespace": (
        _with_head("wrong_namespace", OK_HANDLER.format(name="state")),
        "may only own events named wrong_namespace:",
    ),
    "bad_event": (_with_head("bad_event", OK_HANDLER.replace("{name}:do", "bad_event:Do It")), "namespace:verb"),
    "two_handlers": (
        _with_head("two_handlers", OK_HANDLER.format(name="two_handlers") + OK_HANDLER.format(name="two_handlers")),
        "two handlers",
    ),
    "wordless": (
        _with_head(
            "wordless",
            '@plugin.handles("wordless:do")\nasync def do(ctx: Context, params: Nothing) -> Done:\n    return Done()\n',
        ),
        "has no docstring",
    ),
    "undescribed": (
        _with_head(
            "undescribed",
            'class P(Params):\n    x: int\n\n@plugin.handles("undescribed:do")\n'
            'async def do(ctx: Context, params: P) -> Done:\n    """Do it."""\n',
        ),
        "P.x has no description",
    ),
    "not_async": (
        _with_head(
            "not_async",
            '@plugin.handles("not_async:do")\ndef do(ctx: Context, params: Nothing) -> Done:\n    """Do it."""\n',
        ),
        "must be an async function",
    ),
    "untyped": (
        _with_head("untyped", '@plugin.handles("untyped:do")\nasync def do(ctx, params):\n    """Do it."""\n'),
        "annotate 'params'",
    ),
    "no_result": (
        _with_head(
            "no_result",
            '@plugin.handles("no_result:do")\nasync def do(ctx: Context, params: Nothing) -> dict:\n    """Do it."""\n',
        ),
        "made from Result",
    ),
    "lenient": (
        _with_head(
            "lenient",
            'from pydantic import ConfigDict\nclass P(Params):\n    model_config = ConfigDict(extra="allow")\n\n'
            '@plugin.handles("lenient:do")\nasync def do(ctx: Context, params: P) -> Done:\n    """Do it."""\n',
        ),
        "must refuse unknown fields",
    ),
    "network_schema": (
        _with_head(
            "network_schema",
            'class P(Params):\n    x: Any = Field(description="x", json_schema_extra={"$ref": "https://evil.example/schema.json"})\n\n'
            '@plugin.handles("network_schema:do")\nasync def do(ctx: Context, params: P) -> Done:\n    """Do it."""\n',
        ),
        "https://evil.example/schema.json",
    ),
    "deep_schema": (
        _with_head(
            "deep_schema",
            'deep = {}\nfor _ in range(200):\n    deep = {"items": deep}\n\n'
            'class P(Params):\n    x: Any = Field(description="x", json_schema_extra=deep)\n\n'
            '@plugin.handles("deep_schema:do")\nasync def do(ctx: Context, params: P) -> Done:\n    """Do it."""\n',
        ),
        "deeper than",
    ),
    "wide_schema": (
        _with_head(
            "wide_schema",
            'class P(Params):\n    x: Any = Field(description="x", json_schema_extra={"anyOf": [{"const": n} for n in range(10_000)]})\n\n'
            '@plugin.handles("wide_schema:do")\nasync def do(ctx: Context, params: P) -> Done:\n    """Do it."""\n',
        ),
        "parts",
    ),
    "greedy": (
        _with_head("greedy", "", ", uses=[Magic]").replace("plugin = ", "class Magic: ...\n\nplugin = "),
        "there is no such capability",
    ),
    "inner": (
        _with_head("inner", "", ", uses=[Router]").replace(
            "plugin = ", "from ksi_daemon.routing.router import Router\nplugin = "
        ),
        "no such capability",
    ),
    "exits": ("raise SystemExit(3)\n", "SystemExit"),
    "interrupts": ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
    "raises": ("raise ValueError('while importing')\n", "while importing"),
    "imports": ("import no_such_package_anywhere\n", "no_such_package_anywhere"),
    "recursive": ("def f(): f()\nf()\n", "RecursionError"),
    "bad_life": (
        _with_head(
            "bad_life",
            "@plugin.lifespan\n@contextlib.asynccontextmanager\nasync def alive(home):\n    raise ValueError('cannot open')\n    yield\n",
        ),
        "cannot open",
    ),
    "exit_life": (
        _with_head(
            "exit_life",
            "@plugin.lifespan\n@contextlib.asynccontextmanager\nasync def alive(home):\n    raise SystemExit(9)\n    yield\n",
        ),
        "SystemExit",
    ),
    "no_life": (_with_head("no_life", "@plugin.lifespan\nasync def alive(home):\n    pass\n"), ""),
    "bad_sql": (_with_head("bad_sql", "", ', migrations=["CREATE TABEL x (y)"]'), "migration 1"),
    "bad_pattern": (
        _with_head("bad_pattern", '@plugin.on("agent:**")\nasync def f(ctx, notice): ...\n'),
        "is not a valid pattern",
    ),
    "bad_notice": (
        _with_head("bad_notice", 'plugin.announces("state:changed", "Not mine.")\n'),
        "is not a valid notice name",
    ),
    "state": (_with_head("state", OK_HANDLER.format(name="state")), "is already used by"),
    "binary": ("\x00\x01\x02", ""),
}


def test_every_kind_of_broken_plugin_is_set_aside_with_its_reason_and_the_rest_serves(daemon: Daemon) -> None:
    """D07: nothing that a plugin can be by itself takes the daemon down."""
    for name, (source, _) in BROKEN.items():
        daemon.plugin_file(name, source)
    (daemon.plugins / "empty_folder").mkdir()
    daemon.plugin_file("Bad-Folder", _with_head("bad", ""))
    daemon.plugin("whole", OK_HANDLER.format(name="whole"))
    daemon.plugin("zz_last", OK_HANDLER.format(name="zz_last"))
    daemon.start()
    health = daemon.call("system:health")
    assert health["status"] == "degraded"
    reasons = {
        name.partition(" ")[0]: row["reason"] or ""
        for name, row in health["plugins"].items()
        if row["state"] == "broken"
    }
    assert set(reasons) == {*BROKEN, "empty_folder", "Bad-Folder"}
    wrong = {
        name: reasons[name] for name, (_, says) in BROKEN.items() if says not in reasons[name] or not reasons[name]
    }
    assert wrong == {}
    assert [reason for reason in reasons.values() if "Traceback" in reason or len(reason) > 1_000] == []
    assert daemon.call("whole:do") == {"done": True}
    assert daemon.call("zz_last:do") == {"done": True}
    assert daemon.call("state:set", {"key": "k", "value": 1})["created"] is True
    listed = {row["path"]: row for row in daemon.call("plugin:list")["plugins"]}
    assert listed[str(daemon.plugins / "syntax")]["state"] == "broken"


def test_tool_names_that_would_collide_are_refused_for_the_second_plugin(daemon: Daemon) -> None:
    daemon.plugin("a", OK_HANDLER.replace("{name}:do", "a:b_c"))
    daemon.plugin("a_b", OK_HANDLER.replace("{name}:do", "a_b:c"))
    daemon.start()
    health = daemon.call("system:health")["plugins"]
    assert health["a"]["state"] == "running"
    assert health["a_b"]["state"] == "broken"
    assert "ksi_a_b_c" in health["a_b"]["reason"]
    assert "a:b_c" in health["a_b"]["reason"]
    with pytest.raises(Refused) as refused:
        daemon.call("a_b:c")
    assert refused.value.code == "unknown_event"


def test_a_disabled_plugin_is_listed_but_not_even_imported(daemon: Daemon) -> None:
    daemon.plugin_file("unwanted", "raise SystemExit\n")
    daemon.start(KSI_PLUGINS_DISABLED="unwanted")
    assert daemon.call("system:health")["plugins"]["unwanted"]["state"] == "disabled"
    assert daemon.call("system:health")["status"] == "ok"


def test_a_broken_plugin_that_is_mended_runs_after_a_reload(daemon: Daemon) -> None:
    daemon.plugin_file("mended", "def broken(:\n")
    daemon.start()
    with pytest.raises(Refused) as refused:
        daemon.call("plugin:reload", {"name": "mended"})
    assert refused.value.code == "conflict"
    assert "SyntaxError" in refused.value.error["message"]
    daemon.plugin("mended", OK_HANDLER.format(name="mended"))
    assert daemon.call("plugin:reload", {"name": "mended"})["state"] == "running"
    assert daemon.call("mended:do") == {"done": True}
    assert daemon.call("system:health")["status"] == "ok"


def test_a_plugin_whose_life_breaks_later_is_set_aside_then(daemon: Daemon) -> None:
    daemon.plugin(
        "brittle",
        """
import anyio

async def tick():
    await asyncio.sleep(0.1)
    raise ValueError("the ticker broke")

@plugin.lifespan
@contextlib.asynccontextmanager
async def alive(home):
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        yield
"""
        + OK_HANDLER.format(name="brittle"),
    )
    daemon.start()
    until(lambda: daemon.call("system:health")["plugins"]["brittle"]["state"] == "broken", what="it is set aside")
    assert "the ticker broke" in daemon.call("system:health")["plugins"]["brittle"]["reason"]
    assert daemon.call("system:echo", {"text": "rest"}) == {"text": "rest"}


def _package(daemon: Daemon, entry_points: str) -> None:
    """An installed distribution, as the import system sees one."""
    site = daemon.folder / "site"
    info = site / "weather_for_ksi-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather-for-ksi\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ksi.plugins]\n{entry_points}")
    package = site / "weather_package"
    package.mkdir()
    (package / "__init__.py").write_text(_with_head("weather", OK_HANDLER.format(name="weather")))
    daemon.python_path.append(str(site))


def test_a_plugin_of_an_installed_package_is_found_by_its_entry_point(daemon: Daemon) -> None:
    _package(daemon, "weather = weather_package:plugin\n")
    daemon.start()
    assert daemon.call("weather:do") == {"done": True}
    inspected = daemon.call("plugin:inspect", {"name": "weather"})
    assert (inspected["source"], inspected["path"]) == ("package", "weather_package:plugin")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("weather = no_such_package:plugin", "no_such_package"),
        ("weather = weather_package:nothing", "nothing"),
        ("rain = weather_package:plugin", "rain"),
        ("weather = weather_package:Done", "Plugin"),
    ],
)
def test_a_broken_entry_point_is_set_aside_like_any_other_plugin(daemon: Daemon, entry: str, says: str) -> None:
    _package(daemon, entry + "\n")
    daemon.start()
    row = daemon.call("system:health")["plugins"][entry.partition(" ")[0]]
    assert row["state"] == "broken"
    assert says in row["reason"]


def test_the_same_plugin_in_two_folders_runs_once_and_the_other_is_explained(daemon: Daemon) -> None:
    daemon.plugin("twin", OK_HANDLER.format(name="twin"))
    second = daemon.folder / "more"
    (second / "twin").mkdir(parents=True)
    (second / "twin" / "__init__.py").write_text("raise SystemExit\n")
    daemon.start(KSI_PLUGIN_DIRS=f"{daemon.plugins}:{second}")
    assert daemon.call("twin:do") == {"done": True}
    reasons = [row["reason"] for row in daemon.call("system:health")["plugins"].values() if row["state"] == "broken"]
    assert len(reasons) == 1
    assert "is already used by" in reasons[0]
