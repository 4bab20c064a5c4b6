"""A plugin is swapped for a new version while everyone goes on calling it, and nobody notices but by the answers."""

import threading
from collections import Counter
from functools import partial

import pytest

from tests.live.daemon_process import Connection, Daemon, Refused, until

VERSION = '''
class Version(Result):
    version: int

@plugin.handles("{name}:version")
async def version(ctx: Context, params: Nothing) -> Version:
    """Say which version this is."""
    await asyncio.sleep(0.002)
    return Version(version={number})
'''


class Caller(threading.Thread):
    """Calls one event again and again, and keeps what came back."""

    def __init__(self, daemon: Daemon, event: str, over: threading.Event) -> None:
        super().__init__()
        self.event = event
        self.versions: Counter[int] = Counter()
        self.failures: list[str] = []
        self._connection: Connection = daemon.connect()
        self._over = over

    def run(self) -> None:
        with self._connection as connection:
            while not self._over.is_set():
                answer = connection.send(self.event)
                if answer["ok"]:
                    self.versions[answer["data"]["version"]] += 1
                else:
                    self.failures.append(str(answer["error"]))


def _all_saw(callers: list[Caller], version: int) -> bool:
    return all(caller.versions[version] for caller in callers)


def test_ten_reloads_under_load_drop_not_one_call(daemon: Daemon) -> None:
    for name in ("mine", "other"):
        daemon.plugin(name, VERSION.format(name=name, number=0))
    daemon.start()
    over = threading.Event()
    callers = [Caller(daemon, event, over) for event in ("mine:version", "other:version") for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        for number in range(1, 11):
            daemon.plugin("mine", VERSION.format(name="mine", number=number))
            daemon.call("plugin:reload", {"name": "mine"})
            until(partial(_all_saw, callers[:4], number), what="everyone sees the new one")
    finally:
        over.set()
        for caller in callers:
            caller.join(20)
    assert [failure for caller in callers for failure in caller.failures] == []
    assert all(set(caller.versions) == set(range(11)) for caller in callers[:4])
    assert all(set(caller.versions) == {0} for caller in callers[4:])


def test_a_broken_new_version_leaves_the_old_one_serving(daemon: Daemon) -> None:
    daemon.plugin("mine", VERSION.format(name="mine", number=1))
    daemon.start()
    for source in ("def broken(:\n", "raise SystemExit\n", "", VERSION.format(name="state", number=2)):
        daemon.plugin("mine", source) if source.startswith("\n") else daemon.plugin_file("mine", source)
        with pytest.raises(Refused) as refused:
            daemon.call("plugin:reload", {"name": "mine"})
        assert refused.value.code == "conflict"
        assert daemon.call("mine:version") == {"version": 1}
        assert daemon.call("system:health")["plugins"]["mine"]["state"] == "running"


def test_a_new_version_with_one_more_migration_finds_its_old_rows_and_its_new_table(daemon: Daemon) -> None:
    first = '"CREATE TABLE notes (text TEXT)"'
    second = '"ALTER TABLE notes ADD COLUMN stars INTEGER NOT NULL DEFAULT 5; CREATE TABLE tags (tag TEXT)"'
    add = '''
@plugin.handles("keeps:add")
async def add(ctx: Context, params: Nothing) -> Done:
    """Add a row."""
    await ctx.database.execute("INSERT INTO notes (text) VALUES ('x')")
    return Done()
'''
    stars = '''
class Stars(Result):
    stars: list[int]

@plugin.handles("keeps:stars")
async def stars(ctx: Context, params: Nothing) -> Stars:
    """Read the new column."""
    return Stars(stars=[row["stars"] for row in await ctx.database.fetch("SELECT stars FROM notes")])
'''
    daemon.plugin("keeps", add, arguments=f", migrations=[{first}]")
    daemon.start()
    daemon.call("keeps:add")
    daemon.plugin("keeps", add + stars, arguments=f", migrations=[{first}, {second}]")
    daemon.call("plugin:reload", {"name": "keeps"})
    assert daemon.call("keeps:stars") == {"stars": [5]}
    assert daemon.call("plugin:inspect", {"name": "keeps"})["database"]["version"] == 2
    daemon.plugin("keeps", add, arguments=f", migrations=[{first}]")
    with pytest.raises(Refused) as refused:
        daemon.call("plugin:reload", {"name": "keeps"})
    assert refused.value.code == "conflict", "a version that knows less than the database has is refused"
    assert daemon.call("keeps:stars") == {"stars": [5]}
    daemon.plugin("keeps", add + stars, arguments=f', migrations=["CREATE TABLE rewritten (past TEXT)", {second}]')
    with pytest.raises(Refused) as refused:
        daemon.call("plugin:reload", {"name": "keeps"})
    assert refused.value.code == "conflict"
    assert daemon.call("keeps:stars") == {"stars": [5]}
    daemon.kill()
    daemon.plugin("keeps", add + stars, arguments=f", migrations=[{first}, {second}]")
    daemon.start()
    assert daemon.call("keeps:stars") == {"stars": [5]}


def test_a_failing_new_migration_leaves_the_old_version_and_its_rows(daemon: Daemon) -> None:
    first = '"CREATE TABLE notes (text TEXT)"'
    daemon.plugin("keeps", VERSION.format(name="keeps", number=1), arguments=f", migrations=[{first}]")
    daemon.start()
    bad = '"CREATE TABLE half (x TEXT); CREATE TABEL broken (y)"'
    daemon.plugin("keeps", VERSION.format(name="keeps", number=2), arguments=f", migrations=[{first}, {bad}]")
    with pytest.raises(Refused) as refused:
        daemon.call("plugin:reload", {"name": "keeps"})
    assert "migration 2" in refused.value.error["message"]
    assert daemon.call("keeps:version") == {"version": 1}
    good = '"CREATE TABLE half (x TEXT)"'
    daemon.plugin("keeps", VERSION.format(name="keeps", number=3), arguments=f", migrations=[{first}, {good}]")
    daemon.call("plugin:reload", {"name": "keeps"})
    assert daemon.call("keeps:version") == {"version": 3}


def test_a_call_that_runs_during_the_reload_ends_in_the_version_it_began_in(daemon: Daemon) -> None:
    slow = VERSION.replace("0.002", "0.7")
    daemon.plugin("mine", slow.format(name="mine", number=1))
    daemon.start()
    with daemon.connect() as caller:
        request = caller.post("mine:version")
        until(lambda: daemon.call("system:status")["calls_in_flight"] == 1)
        daemon.plugin("mine", slow.format(name="mine", number=2))
        daemon.call("plugin:reload", {"name": "mine"})
        assert caller.answer(request)["data"] == {"version": 1}
    assert daemon.call("mine:version") == {"version": 2}


def test_modules_of_a_plugin_are_read_again_too(daemon: Daemon) -> None:
    folder = daemon.plugin(
        "mine", VERSION.format(name="mine", number="NUMBER").replace("\n", "\nfrom .number import NUMBER\n", 1)
    )
    (folder / "number.py").write_text("NUMBER = 1\n")
    daemon.start()
    assert daemon.call("mine:version") == {"version": 1}
    (folder / "number.py").write_text("NUMBER = 2\n")
    daemon.call("plugin:reload", {"name": "mine"})
    assert daemon.call("mine:version") == {"version": 2}


def test_fifty_reloads_leave_no_listener_behind(daemon: Daemon) -> None:
    heard = """
plugin.announces("mine:heard", "It was heard.")

@plugin.on("knock:knock")
async def listen(ctx: Context, notice: Notice) -> None:
    ctx.notify("mine:heard")
"""
    daemon.plugin("mine", heard)
    daemon.start()
    with daemon.connect() as connection:
        connection.call("message:subscribe", {"patterns": ["mine:*"]})
        for _ in range(50):
            connection.call("plugin:reload", {"name": "mine"})
        assert connection.call("message:publish", {"event": "knock:knock"})["matched"] == 1
        connection.notice()


def test_two_reloads_of_one_plugin_at_once_leave_one_version(daemon: Daemon) -> None:
    daemon.plugin("mine", "time.sleep(0.3)\n" + VERSION.format(name="mine", number=1))
    daemon.start()
    with daemon.connect() as first, daemon.connect() as second:
        requests = [(connection, connection.post("plugin:reload", {"name": "mine"})) for connection in (first, second)]
        answers = [connection.answer(request) for connection, request in requests]
    assert sorted(answer["ok"] for answer in answers) == [False, True]
    assert daemon.call("mine:version") == {"version": 1}


def test_the_daemons_own_plugins_and_unknown_ones_are_not_reloaded(daemon: Daemon) -> None:
    daemon.start()
    for name, code in (("state", "conflict"), ("nobody", "not_found"), ("../evil", "not_found")):
        with pytest.raises(Refused) as refused:
            daemon.call("plugin:reload", {"name": name})
        assert refused.value.code == code
