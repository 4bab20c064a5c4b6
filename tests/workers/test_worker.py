"""Work off the event loop: a thread for what blocks, a process for what may run wild."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ksi_daemon.errors import Internal, TimedOut, Unavailable
from ksi_daemon.plugin import Context, Nothing, Plugin, in_thread
from ksi_daemon.testing import running
from tests.in_process import Said, soon, take_clock, until
from tests.plugin_folders import write_plugin

SOURCE = '''"""A plugin that computes elsewhere."""
import os, time
from ksi_daemon.plugin import Context, Field, Params, Plugin, Result, in_process
plugin = Plugin("far")

class What(Params):
    what: str = Field(description="What to do.")

class Told(Result):
    text: str

def compute(what):
    if what == "exit":
        os._exit(3)
    if what == "raise":
        raise ValueError("far away")
    if what.startswith("hang "):
        open(what.removeprefix("hang "), "w").close()
        time.sleep(600)
    if what == "pid":
        return str(os.getpid())
    return "{answer}"

@plugin.handles("far:compute", timeout_s=60)
async def far(ctx: Context, params: What) -> Told:
    """Compute."""
    return Told(text=await in_process(compute, params.what))
'''


@pytest.fixture(autouse=True)
def forgotten_modules() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("ksi_plugins.")]:
        del sys.modules[name]


async def test_blocking_work_in_a_thread_leaves_the_loop_free() -> None:
    plugin = Plugin("blocking")
    entered, release = threading.Event(), threading.Event()

    def block(word: str, *, end: str) -> str:
        entered.set()
        release.wait(10)
        return word + end

    @plugin.handles("blocking:block")
    async def handle(ctx: Context, params: Nothing) -> Said:
        """Block."""
        return Said(text=await in_thread(block, "done", end="!"))

    async with running(plugin) as hub:
        task = asyncio.create_task(hub.call("blocking:block"))
        await until(entered.is_set)
        assert await soon(hub.call("system:echo", text="free"))
        release.set()
        assert (await soon(task))["text"] == "done!"


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
async def test_whatever_a_thread_raises_is_the_handlers_failure(error: BaseException) -> None:
    """D07."""
    plugin = Plugin("blocking")

    def fail() -> None:
        raise error

    @plugin.handles("blocking:fail")
    async def handle(ctx: Context, params: Nothing) -> Said:
        """Fail."""
        await in_thread(fail)
        return Said()

    async with running(plugin) as hub:
        with pytest.raises(Internal):
            await soon(hub.call("blocking:fail"))
        assert await hub.call("system:echo", text="still here")


async def test_a_deadline_ends_the_wait_for_a_thread() -> None:
    plugin = Plugin("blocking")
    entered, release = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        release.wait(10)

    @plugin.handles("blocking:block", timeout_s=1)
    async def handle(ctx: Context, params: Nothing) -> Said:
        """Block."""
        await in_thread(block)
        return Said()

    async with running(plugin) as hub:
        clock = take_clock(hub)
        task = asyncio.create_task(hub.call("blocking:block"))
        await until(entered.is_set)
        clock.now_s += 1
        hub.hub.router.deadlines.sweep()
        with pytest.raises(TimedOut):
            await soon(task)
        release.set()


async def test_work_in_a_process_answers_fails_and_dies_alone(tmp_path: Path) -> None:
    """D07: os._exit in a worker."""
    import os

    folder = write_plugin(tmp_path, "far", SOURCE.replace("{answer}", "computed"))
    async with running(folder) as hub:
        assert (await hub.call("far:compute", what="work"))["text"] == "computed"
        assert (await hub.call("far:compute", what="pid"))["text"] != str(os.getpid())
        with pytest.raises(Internal):
            await hub.call("far:compute", what="raise")
        with pytest.raises(Unavailable, match="compute died"):
            await hub.call("far:compute", what="exit")
        assert (await hub.call("far:compute", what="work"))["text"] == "computed"


def has_ended(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):  # it may go between the opening of the file and its reading
        return True


async def test_a_process_that_hangs_is_killed_at_the_deadline(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path, "far", SOURCE.replace("{answer}", "computed"))
    async with running(folder) as hub:
        pid = int((await hub.call("far:compute", what="pid"))["text"])
        clock = take_clock(hub)
        hangs = tmp_path / "hangs"
        task = asyncio.create_task(hub.call("far:compute", what=f"hang {hangs}"))
        await until(hangs.exists)
        clock.now_s += 60
        hub.hub.router.deadlines.sweep()
        with pytest.raises(TimedOut):
            await soon(task)
        await until(lambda: has_ended(pid))


async def test_after_a_reload_a_process_runs_the_new_code(tmp_path: Path) -> None:
    """A worker that was kept warm must not answer with what it once imported."""
    folder = write_plugin(tmp_path, "far", SOURCE.replace("{answer}", "old"))
    async with running(folder) as hub:
        assert (await hub.call("far:compute", what="work"))["text"] == "old"
        write_plugin(tmp_path, "far", SOURCE.replace("{answer}", "new"))
        await hub.call("plugin:reload", name="far")
        assert (await hub.call("far:compute", what="work"))["text"] == "new"
