"""Plugin code that holds the event loop is interrupted, named in the log, and the daemon serves again."""

import pytest

from tests.live.daemon_process import Daemon, Refused

BLOCKS = '''
@plugin.handles("blocks:sleep")
async def sleep(ctx: Context, params: Nothing) -> Done:
    """Sleep where nobody may."""
    time.sleep(60)

@plugin.handles("blocks:spin")
async def spin(ctx: Context, params: Nothing) -> Done:
    """Spin."""
    while True:
        pass

@plugin.handles("blocks:careful")
async def careful(ctx: Context, params: Nothing) -> Done:
    """Spin, and catch what can be caught."""
    while True:
        try:
            time.sleep(1)
        except Exception:
            pass

@plugin.on("blocks:please")
async def listen(ctx: Context, notice: Notice) -> None:
    time.sleep(60)
'''


@pytest.mark.parametrize("name", ["sleep", "spin", "careful"])
def test_a_handler_that_holds_the_loop_is_interrupted_after_five_seconds(daemon: Daemon, name: str) -> None:
    """D07"""
    daemon.plugin("blocks", BLOCKS)
    daemon.start()
    with daemon.connect(wait_s=12) as blocked, daemon.connect(wait_s=12) as other:
        request = blocked.post(f"blocks:{name}")
        assert other.call("system:echo", {"text": "in the end"}) == {"text": "in the end"}
        answer = blocked.answer(request)
    assert answer["error"]["code"] in ("internal", "timed_out")
    assert any("blocks" in line["stack"] for line in daemon.logged("the event loop is blocked"))
    assert daemon.health_s() <= 0.5


SLOW_START = """
@plugin.lifespan
@contextlib.asynccontextmanager
async def alive(home):
    {body}
    yield
"""


def test_a_plugin_that_holds_the_loop_while_it_starts_is_interrupted_and_the_old_version_goes_on(
    daemon: Daemon,
) -> None:
    """D07"""
    daemon.plugin("begins", SLOW_START.format(body="pass") + _answers("old"))
    daemon.start()
    daemon.plugin("begins", SLOW_START.format(body="time.sleep(60)") + _answers("new"))
    with daemon.connect(wait_s=15) as connection:
        with pytest.raises(Refused) as refused:
            connection.call("plugin:reload", {"name": "begins"})
        assert refused.value.code == "conflict"
        assert connection.call("begins:say") == {"text": "old"}


def _answers(text: str) -> str:
    return f'''
class Said(Result):
    text: str

@plugin.handles("begins:say")
async def say(ctx: Context, params: Nothing) -> Said:
    """Say which version this is."""
    return Said(text="{text}")
'''
