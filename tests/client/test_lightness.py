"""What importing and starting may cost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ksi_client
from tests.client.conftest import Ksi
from tests.client.fake_daemon import FakeDaemon

HEAVY = ("asyncio", "ksi_daemon", "rich", "msgspec", "pydantic", "typer", "dataclasses", "subprocess", "inspect")


def loaded_by(code: str) -> set[str]:
    """The modules a fresh interpreter has after running the code."""
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.usefixtures("var")
def test_the_sync_client_loads_nothing_heavy() -> None:
    loaded = loaded_by("import ksi_client; from ksi_client import SyncClient, Unreachable, errors")
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.usefixtures("daemon")
def test_a_plain_send_loads_typer_but_neither_pydantic_nor_asyncio_nor_rich() -> None:
    loaded = loaded_by(
        "import sys; sys.argv = ['ksi', 'send', 'system:echo', 'text=hi']\n"
        "from ksi_client.command import main; assert main() == 0"
    )
    assert "typer" in loaded
    assert loaded.isdisjoint({"asyncio", "ksi_daemon", "rich", "msgspec", "pydantic", "sqlite3"})


@pytest.mark.usefixtures("var")
def test_importing_the_package_loads_none_of_its_clients_and_lists_its_names() -> None:
    loaded = loaded_by("import ksi_client; assert 'Client' in dir(ksi_client)")
    assert {name for name in loaded if name.startswith("ksi_client")} == {"ksi_client"}


def test_a_name_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        _ = ksi_client.Server


def work_s(*words: str) -> float:
    """How much processor time an interpreter needs at best: waiting for a busy machine is not counted."""
    times = []
    for _ in range(7):
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        times.append(used.ru_utime + used.ru_stime)
    return min(times)


def test_send_and_help_are_quick(
    daemon: FakeDaemon, ksi_process: Ksi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "bytecode"))
    ksi_process("send", "system:health")  # compiles
    ksi_process("--help")
    # The limits are 120 ms over an empty Python, and 200 ms; half as much again for a machine under load.
    assert work_s("-m", "ksi_client", "send", "system:health") - work_s("-c", "pass") < 1.5 * 0.120
    assert work_s("-m", "ksi_client", "--help") < 1.5 * 0.200
    assert {request["event"] for request in daemon.requests} == {"system:health"}
