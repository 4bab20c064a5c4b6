"""The clients and the command against the real daemon: what the fake one cannot promise."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ksi_client import Client, SyncClient, errors
from ksi_client.command.lock import holder
from tests.client.conftest import Ksi

WAIT_S = 60


@pytest.fixture
def running(var: Path, ksi: Ksi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The real daemon, detached as an operator starts it, on any free port."""
    monkeypatch.setenv("KSI_PORT", "0")
    monkeypatch.setenv("KSI_PLUGIN_DIRS", "plugins")
    started = ksi("start", "--wait")
    assert started.returncode == 0, started.stderr
    yield var
    ksi("stop")


@pytest.mark.usefixtures("running")
def test_an_operators_round(ksi: Ksi) -> None:
    assert json.loads(ksi("send", "system:echo", "text=5").stdout) == {"text": "5"}
    assert ksi("send", "state:set", "key=k", "value=v").returncode == 0
    assert json.loads(ksi("send", "state:get", "key=k").stdout)["value"] == "v"
    assert ksi("send", "state:get", "key=nope").returncode == 3
    assert ksi("send", "state:list", "limit=0").returncode == 2
    assert ksi("send", "no:such").returncode == 3
    for words in (("events", "ls"), ("events", "help", "state:set"), ("plugins", "ls"), ("plugins", "show", "state")):
        assert ksi(*words).returncode == 0
    doctor = ksi("doctor", "--json")
    assert [check for check in json.loads(doctor.stdout)["checks"] if check["status"] != "ok"] == []


@pytest.mark.usefixtures("running")
def test_a_new_plugin_is_loaded_called_and_mended_while_the_daemon_runs(ksi: Ksi) -> None:
    assert "ksi plugins reload rain" in ksi("plugins", "new", "rain").stderr
    assert ksi("plugins", "reload", "rain").returncode == 0
    assert json.loads(ksi("send", "rain:greet", "who=Ada").stdout) == {"text": "Hello, Ada!"}
    with Path("plugins/rain/__init__.py").open("a") as file:
        file.write("def")
    assert ksi("plugins", "reload", "rain").returncode == 7
    assert ksi("send", "rain:greet", "who=Ada").returncode == 0


@pytest.mark.usefixtures("running")
def test_a_restart_is_not_noticed_by_clients(ksi: Ksi) -> None:
    with SyncClient() as client:
        before = client.send("system:status")["pid"]
        assert ksi("restart").returncode == 0
        assert client.send("system:status")["pid"] != before


@pytest.mark.usefixtures("running")
async def test_calls_and_notices_of_the_asyncio_client() -> None:
    async with Client() as client, client.subscribe("my:*") as notices, asyncio.timeout(WAIT_S):
        answers = await asyncio.gather(*(client.send("system:echo", {"text": str(n)}) for n in range(200)))
        assert answers == [{"text": str(n)} for n in range(200)]
        await client.send("message:publish", {"event": "my:thing", "data": {"n": 1}}, correlation_id="c-1")
        notice = await anext(notices)
        assert (notice.event, notice.data, notice.correlation_id) == ("my:thing", {"n": 1}, "c-1")
        with pytest.raises(errors.Invalid):
            await client.send("system:echo", {"txet": "hi"})
        with pytest.raises(errors.Invalid):
            await anext(client.subscribe("***"))


def test_of_many_starts_at_once_one_wins_and_the_others_name_it(
    var: Path, ksi: Ksi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSI_PORT", "0")
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: ksi("start", "--wait"), range(8)))
    try:
        assert sorted(start.returncode for start in done) == [0] + [75] * 7
        winner = f"pid {holder(var)}"
        assert all(winner in (start.stdout or start.stderr) for start in done)
    finally:
        ksi("stop")


def test_the_test_of_a_new_plugin_passes(var: Path, ksi: Ksi) -> None:
    assert ksi("plugins", "new", "rain").returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "plugins/rain"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
