"""Whatever a handler does, its caller gets an answer, the daemon lives, and other calls are served."""

import pytest

from tests.live.daemon_process import Daemon, Refused, until

# name -> (body of the handler, the codes it may be answered with)
RAISES = {
    "value_error": ("raise ValueError('no')", "internal"),
    "system_exit": ("raise SystemExit(3)", "internal"),
    "keyboard": ("raise KeyboardInterrupt", "internal"),
    "base": ("raise BaseException('bare')", "internal"),
    "own_cancel": ("raise asyncio.CancelledError", "internal"),
    "cancels_itself": ("asyncio.current_task().cancel(); await asyncio.sleep(5)", "internal cancelled"),
    "generator_exit": ("raise GeneratorExit", "internal cancelled"),
    "stop_iteration": ("raise StopIteration", "internal"),
    "stop_async": ("raise StopAsyncIteration", "internal"),
    "own_timeout": ("raise TimeoutError('not the deadline')", "internal"),
    "memory": ("raise MemoryError", "internal"),
    "recursion": ("f = lambda: f(); f()", "internal"),
    "group": ("raise ExceptionGroup('many', [ValueError(1), KeyError(2)])", "internal"),
    "wordless": ("raise Wordless", "internal"),
    "surrogate_error": ("raise ValueError('\\ud800')", "internal"),
    "surrogate_refusal": ("raise NotFound('\\ud800', hint='\\udfff')", "not_found internal"),
    "object_refusal": ("raise NotFound(object())", "not_found internal"),
    "huge_refusal": ("raise NotFound('x' * 100_000_000)", "not_found internal too_large"),
    "base_refusal": ("raise KsiError('just the parent')", "internal"),
    "sys_exit": ("sys.exit('bye')", "internal"),
    "exit_in_thread": ("await in_thread(sys.exit, 1)", "internal"),
    "stop_in_thread": ("await in_thread(next, iter([]))", "internal"),
    "exit_in_worker": ("await in_process(os._exit, 1)", "unavailable"),
    "kill_in_worker": ("await in_process(kill_me)", "unavailable"),
    "raise_in_worker": ("await in_process(divide)", "internal"),
    "unpicklable": ("await in_process(print, lambda: 1)", "internal"),
}

RETURNS = {
    "none": ("return None", "internal"),
    "number": ("return 5", "internal"),
    "dictionary": ("return {'done': True}", "internal"),
    "coroutine": ("return asyncio.sleep", "internal"),
    "other_result": ("return Other()", "internal"),
    "hundred_megabytes": ("return Anything(value='x' * 100_000_000)", "too_large"),
    "cycle": ("ring = []; ring.append(ring); return Anything(value=ring)", "internal"),
    "deep": (
        "deep = []\n    for _ in range(100_000): deep = [deep]\n    return Anything(value=deep)",
        "internal too_large",
    ),
    "surrogate": ("return Anything(value='\\ud800')", "internal"),
    "object": ("return Anything(value=object())", "internal"),
    "socket": ("return Anything(value=sys.stdout)", "internal"),
    "bytes": ("return Anything(value=b'\\xff')", "internal"),
    "smuggled": ("return Done.model_construct(done=object())", "internal"),
    "endless": ("return Anything(value=Endless())", "internal"),
}

HANDLERS_PER_PLUGIN = 4  # after 5 failures a plugin is left alone for a while

HEAD = """
from ksi_daemon.plugin import KsiError

class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("not even that")
    __repr__ = __str__

class Endless:
    def __iter__(self):
        raise SystemExit("in the middle of writing")
    __str__ = __repr__ = __iter__

class Anything(Result):
    value: Any = None

class Other(Result):
    other: bool = True

def kill_me():
    os.kill(os.getpid(), 9)

def divide():
    return 1 / 0
"""

HANDLER = '''
@plugin.handles("{plugin}:{name}", timeout_s=10)
async def {name}(ctx: Context, params: Nothing) -> {result}:
    """Do {name}."""
    {body}
'''


def _write(daemon: Daemon, cases: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Write plugins with a handler for each case, so few to a plugin that none is left alone for failing; case -> event."""
    names = list(cases)
    events: dict[str, str] = {}
    for start in range(0, len(names), HANDLERS_PER_PLUGIN):
        plugin, few = f"bad{start}", names[start : start + HANDLERS_PER_PLUGIN]
        handlers = [
            HANDLER.format(
                plugin=plugin,
                name=name,
                body=cases[name][0],
                result="Anything" if "Anything" in cases[name][0] else "Done",
            )
            for name in few
        ]
        daemon.plugin(plugin, HEAD + "".join(handlers))
        events |= {name: f"{plugin}:{name}" for name in few}
    return events


@pytest.mark.parametrize("details", ["false", "true"])
def test_a_handler_that_raises_anything_is_an_error_for_its_caller_alone(daemon: Daemon, details: str) -> None:
    """D07"""
    events = _write(daemon, RAISES)
    daemon.start(KSI_EXPOSE_ERROR_DETAILS=details)
    wrong: list[str] = []
    for name, (_, codes) in RAISES.items():
        with daemon.connect(wait_s=4) as connection:
            try:
                answer = connection.send(events[name])
            except (TimeoutError, EOFError, ConnectionError) as error:
                wrong.append(f"{name}: no answer, {error!r}")
                assert daemon.alive, wrong
                continue
        if answer["ok"] or answer["error"]["code"] not in codes.split() or len(str(answer)) > 1_000_000:
            wrong.append(f"{name}: {str(answer)[:200]}")
        assert daemon.call("system:echo", {"text": name}) == {"text": name}
    assert not wrong, "\n".join(wrong)
    assert daemon.call("system:status")["calls_in_flight"] == 0


def test_a_handler_that_returns_garbage_is_an_error_for_its_caller_alone(daemon: Daemon) -> None:
    """D07"""
    events = _write(daemon, RETURNS)
    daemon.start()
    wrong: list[str] = []
    for name, (_, codes) in RETURNS.items():
        with daemon.connect(wait_s=10) as connection:
            try:
                answer = connection.send(events[name])
            except (TimeoutError, EOFError, ConnectionError) as error:
                wrong.append(f"{name}: no answer, {error!r}")
                assert daemon.alive, wrong
                continue
        if answer["ok"] or answer["error"]["code"] not in codes.split():
            wrong.append(f"{name}: {str(answer)[:200]}")
        assert daemon.call("system:echo", {"text": name}) == {"text": name}
    assert not wrong, "\n".join(wrong)


def test_a_handler_that_returns_no_number_gives_an_answer_that_is_still_json(daemon: Daemon) -> None:
    """D07"""
    returns = {
        "nan": ("return Anything(value=float('nan'))", ""),
        "infinity": ("return Anything(value=[float('inf')])", ""),
    }
    events = _write(daemon, returns)
    daemon.start()
    with daemon.connect() as connection:
        for name in returns:
            connection.write(b'{"event":"%b","id":1}\n' % events[name].encode())
            line = connection.line()
            assert b"NaN" not in line
            assert b"Infinity" not in line


HANGS = '''
@plugin.handles("hangs:quietly", timeout_s=0.3)
async def quietly(ctx: Context, params: Nothing) -> Done:
    """Wait for ever."""
    await asyncio.Event().wait()

@plugin.handles("hangs:deaf", timeout_s=0.3)
async def deaf(ctx: Context, params: Nothing) -> Done:
    """Wait for ever and swallow every cancellation."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)

@plugin.handles("hangs:late", timeout_s=0.3)
async def late(ctx: Context, params: Nothing) -> Done:
    """Swallow one cancellation and raise something else."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise ValueError("instead")

@plugin.handles("hangs:in_thread", timeout_s=0.3)
async def thread(ctx: Context, params: Nothing) -> Done:
    """Sit in a thread."""
    await in_thread(time.sleep, 30)

@plugin.handles("hangs:in_worker", timeout_s=1)
async def worker(ctx: Context, params: Nothing) -> Done:
    """Sit in a worker process."""
    await in_process(time.sleep, 30)

@plugin.handles("hangs:in_call", timeout_s=0.3)
async def nested(ctx: Context, params: Nothing) -> Done:
    """Wait for a call that takes too long."""
    await ctx.call("hangs:patient")

@plugin.handles("hangs:patient", timeout_s=3600)
async def patient(ctx: Context, params: Nothing) -> Done:
    """Take too long."""
    await asyncio.Event().wait()
'''


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("quietly", "timed_out"),
        ("deaf", "timed_out"),
        ("late", "timed_out internal"),
        ("in_thread", "timed_out"),
        ("in_worker", "timed_out"),
        ("in_call", "timed_out"),
    ],
)
def test_a_handler_that_hangs_is_answered_at_its_deadline(daemon: Daemon, name: str, codes: str) -> None:
    """D07"""
    daemon.plugin("hangs", HANGS)
    daemon.start()
    with daemon.connect(wait_s=5) as connection, pytest.raises(Refused) as refused:
        connection.call(f"hangs:{name}")
    assert refused.value.code in codes.split()
    assert daemon.call("system:echo", {"text": "others"}) == {"text": "others"}


def test_a_caller_may_ask_for_less_time_than_the_handler_has(daemon: Daemon) -> None:
    """D07"""
    daemon.plugin("hangs", HANGS)
    daemon.start()
    with daemon.connect(wait_s=5) as connection, pytest.raises(Refused) as refused:
        connection.call("hangs:patient", timeout_s=0.2)
    assert refused.value.code == "timed_out"


def test_a_caller_that_goes_away_cancels_its_call_and_it_is_recorded_as_cancelled(daemon: Daemon) -> None:
    """D07"""
    daemon.plugin("hangs", HANGS)
    daemon.start()
    with daemon.connect() as connection:
        connection.post("hangs:patient")
        until(lambda: daemon.call("system:status")["calls_in_flight"] == 1)
    until(lambda: daemon.call("system:status")["calls_in_flight"] == 0)
    [record] = daemon.call("monitor:get_events", {"event_patterns": ["hangs:*"]})["events"]
    assert record["outcome"] == "cancelled"


SPAWNS = '''
async def fail(error):
    raise error

tasks = []

@plugin.handles("spawns:error")
async def error(ctx: Context, params: Nothing) -> Done:
    """Leave a task behind that raises."""
    asyncio.create_task(fail(ValueError("nobody waits for this")))
    await asyncio.sleep(0)
    return Done()

@plugin.handles("spawns:exit_in_thread")
async def exit_in_thread(ctx: Context, params: Nothing) -> Done:
    """Exit in a thread of its own."""
    threading.Thread(target=sys.exit, args=(1,)).start()
    return Done()

@plugin.handles("spawns:error_in_thread")
async def error_in_thread(ctx: Context, params: Nothing) -> Done:
    """Break in a thread of its own."""
    threading.Thread(target=lambda: 1 / 0).start()
    return Done()

@plugin.handles("spawns:soon")
async def soon(ctx: Context, params: Nothing) -> Done:
    """Leave a callback behind that raises."""
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)
    return Done()

@plugin.handles("spawns:exit")
async def exit_in_task(ctx: Context, params: Nothing) -> Done:
    """Leave a task behind that exits."""
    asyncio.create_task(fail(SystemExit(4)))
    await asyncio.sleep(0.05)
    return Done()

@plugin.handles("spawns:keyboard")
async def keyboard_in_task(ctx: Context, params: Nothing) -> Done:
    """Leave a task behind that pretends to be Ctrl-C."""
    asyncio.create_task(fail(KeyboardInterrupt()))
    await asyncio.sleep(0.05)
    return Done()
'''


@pytest.mark.parametrize("name", ["error", "soon", "exit_in_thread", "error_in_thread", "exit", "keyboard"])
def test_what_a_handler_leaves_running_cannot_take_the_daemon_down(daemon: Daemon, name: str) -> None:
    """D07"""
    daemon.plugin("spawns", SPAWNS)
    daemon.start()
    with daemon.connect(wait_s=5) as connection:
        assert connection.call(f"spawns:{name}") == {"done": True}
    for _ in range(20):
        assert daemon.call("system:echo", {"text": name}) == {"text": name}
    assert daemon.alive
    assert daemon.stop() == 0
    (daemon.folder / "stderr").write_text("")  # a thread's own traceback on stderr is Python's, and fair


LISTENS = """
@plugin.on("knock:knock")
async def listen(ctx: Context, notice: Notice) -> None:
    kind = notice.data["kind"]
    if kind == "exit":
        raise SystemExit
    if kind == "hang":
        await asyncio.Event().wait()
    if kind == "cancel":
        raise asyncio.CancelledError
    if kind == "generator":
        raise GeneratorExit
    if kind == "base":
        raise BaseException("bare")
    if kind == "wordless":
        raise Wordless
    ctx.notify("listens:heard", {"kind": kind})

plugin.announces("listens:heard", "A knock was heard.")

class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("not even that")
"""


def test_a_listener_that_fails_in_any_way_hears_the_next_notice(daemon: Daemon) -> None:
    """D07"""
    daemon.plugin("listens", LISTENS)
    daemon.start(KSI_CALL_TIMEOUT_S="0.3")
    kinds = ["exit", "hang", "cancel", "generator", "base", "wordless"]
    with daemon.connect(wait_s=5) as connection:
        connection.call("message:subscribe", {"patterns": ["listens:*"]})
        for kind in kinds:
            connection.call("message:publish", {"event": "knock:knock", "data": {"kind": kind}})
            connection.call("message:publish", {"event": "knock:knock", "data": {"kind": f"after {kind}"}})
            assert connection.notice()["data"] == {"kind": f"after {kind}"}
        [subscription] = connection.call("plugin:inspect", {"name": "listens"})["subscriptions"]
    assert subscription["failed"] == len(kinds)
    assert subscription["delivered"] == 2 * len(kinds)
