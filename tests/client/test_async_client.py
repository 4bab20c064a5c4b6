"""The asyncio client against a fake daemon: calls in flight together, restarts, notices, and nothing left running."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksi_client import Client, errors
from tests.client.fake_daemon import FakeDaemon, HangUp, Silence, fail

WAIT_S = 10


@pytest.fixture(autouse=True)
async def nothing_is_left_running() -> AsyncIterator[None]:
    """Every test must end with as many tasks as it began with."""
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() - before - {asyncio.current_task()} == set()


async def in_thread(work: Any, *details: Any) -> Any:
    """Run blocking work of the fake daemon without stopping the loop."""
    return await asyncio.wait_for(asyncio.to_thread(work, *details), WAIT_S)


async def test_answers_are_matched_to_calls_whatever_their_order(daemon: FakeDaemon) -> None:
    second_came = threading.Event()

    def first(_: dict[str, Any]) -> str:
        assert second_came.wait(WAIT_S)
        return "first"

    def second(_: dict[str, Any]) -> str:
        second_came.set()
        return "second"

    daemon.answers |= {"a:first": first, "a:second": second}
    async with Client() as client, asyncio.timeout(WAIT_S):
        answers: list[str] = await asyncio.gather(*map(client.send, ("a:first", "a:second")))
    assert answers == ["first", "second"]


async def test_hundreds_in_flight_on_one_connection_all_get_their_own_answer(daemon: FakeDaemon) -> None:
    async with Client() as client, asyncio.timeout(WAIT_S):
        answers = await asyncio.gather(*(client.send("system:echo", {"n": n}) for n in range(300)))
    assert answers == [{"n": n} for n in range(300)]
    assert len(daemon._connections) <= 1


async def test_a_failed_call_raises_its_typed_error_and_others_go_on(daemon: FakeDaemon) -> None:
    daemon.answers["a:fails"] = fail(code="not_found", message="gone", hint="look elsewhere")
    async with Client() as client, asyncio.timeout(WAIT_S):
        outcomes: list[Any] = await asyncio.gather(
            *(client.send(event, {"n": 1}) for event in ("a:fails", "system:echo")), return_exceptions=True
        )
    failed, echoed = outcomes
    assert isinstance(failed, errors.NotFound)
    assert failed.hint == "look elsewhere"
    assert echoed == {"n": 1}


async def test_without_a_daemon_the_first_call_fails_at_once(var: Path) -> None:
    async with Client() as client, asyncio.timeout(1):
        with pytest.raises(errors.Unreachable, match="does not exist"):
            await client.send("system:echo")


async def test_a_call_that_is_never_answered_times_out_and_leaves_the_connection_usable(daemon: FakeDaemon) -> None:
    def silent(_: dict[str, Any]) -> Any:
        raise Silence

    daemon.answers["a:slow"] = silent
    async with Client() as client, asyncio.timeout(WAIT_S):
        with pytest.raises(errors.TimedOut):
            await client.send("a:slow", timeout_s=0.05)
        assert await client.send("system:echo", {"n": 1}) == {"n": 1}


async def test_a_callers_own_timeout_is_not_mistaken_for_the_deadline(daemon: FakeDaemon) -> None:
    def silent(_: dict[str, Any]) -> Any:
        raise Silence

    daemon.answers["a:slow"] = silent
    async with Client() as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send("a:slow"), 0.05)
        assert await client.send("system:echo", {"n": 1}, timeout_s=WAIT_S) == {"n": 1}


async def test_a_call_sent_and_not_answered_is_never_sent_twice(daemon: FakeDaemon) -> None:
    def hang_up(_: dict[str, Any]) -> Any:
        raise HangUp

    daemon.answers["a:once"] = hang_up
    async with Client() as client, asyncio.timeout(WAIT_S):
        with pytest.raises(errors.Unavailable, match="may have run"):
            await client.send("a:once")
        assert await client.send("system:echo", {"n": 1}) == {"n": 1}
    assert [request["event"] for request in daemon.requests] == ["a:once", "system:echo"]


async def test_a_call_made_while_the_daemon_restarts_waits_for_it(daemon: FakeDaemon) -> None:
    async with Client() as client, asyncio.timeout(WAIT_S):
        await client.send("system:echo")
        await in_thread(daemon.stop)
        returning = threading.Timer(0.2, daemon.start)
        returning.start()
        answers = await asyncio.gather(*(client.send("system:echo", {"n": n}) for n in range(5)))
        assert answers == [{"n": n} for n in range(5)]
        await in_thread(returning.join)


async def test_a_restart_during_a_blocked_loop_is_noticed_before_writing(daemon: FakeDaemon) -> None:
    async with Client() as client, asyncio.timeout(WAIT_S):
        await client.send("system:echo")
        daemon.stop()  # on purpose without letting the loop run: the hang-up is known to the kernel only
        daemon.start()
        assert await client.send("system:echo", {"n": 2}) == {"n": 2}


async def test_without_reconnect_a_restart_is_an_error(daemon: FakeDaemon) -> None:
    async with Client(reconnect=False) as client, asyncio.timeout(WAIT_S):
        await client.send("system:echo")
        await in_thread(daemon.stop)
        with pytest.raises(errors.Unreachable):
            await client.send("system:echo")
        daemon.start()


async def test_closing_ends_calls_in_flight(daemon: FakeDaemon) -> None:
    asked = threading.Event()

    def silent(_: dict[str, Any]) -> Any:
        asked.set()
        raise Silence

    daemon.answers["a:slow"] = silent
    client = Client()
    call = asyncio.create_task(client.send("a:slow"))
    assert await in_thread(asked.wait, WAIT_S)
    await client.close()
    with pytest.raises(errors.ConnectionLost):
        await asyncio.wait_for(call, WAIT_S)


async def test_a_long_answer_and_a_long_socket_path_are_no_trouble(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 6) / "ksi.sock"
    with FakeDaemon(deep) as daemon:
        daemon.answers["a:long"] = lambda _: "x" * 3_000_000
        async with Client(deep) as client, asyncio.timeout(WAIT_S):
            assert len(await client.send("a:long")) == 3_000_000


async def test_an_oversize_request_is_refused_before_it_is_written(daemon: FakeDaemon) -> None:
    async with Client() as client:
        with pytest.raises(errors.TooLarge):
            await client.send("system:echo", {"text": "x" * 1_000_000})
    assert daemon.requests == []


async def test_notices_arrive_in_order_with_drops_counted(daemon: FakeDaemon) -> None:
    told: list[str] = []
    async with Client() as client, client.subscribe("a:*", on_status=told.append) as notices, asyncio.timeout(WAIT_S):
        daemon.publish("a:one", n=1)
        daemon.push({"dropped": 12})
        daemon.publish("a:two", n=2)
        assert [(await anext(notices)).event for _ in range(2)] == ["a:one", "a:two"]
        assert notices.dropped == 12
    assert told == ["12 notices dropped: this reader is too slow (12 in all)"]


async def test_a_cancelled_wait_for_a_notice_loses_none(daemon: FakeDaemon) -> None:
    async with Client() as client, client.subscribe("*") as notices:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(notices), 0.01)
        daemon.publish("a:late")
        assert (await asyncio.wait_for(anext(notices), WAIT_S)).event == "a:late"


async def test_a_subscription_is_made_again_after_a_restart(daemon: FakeDaemon) -> None:
    async with Client() as client, client.subscribe("a:*", "b:*") as notices, asyncio.timeout(WAIT_S):
        await in_thread(daemon.stop)
        daemon.start()
        waiting = asyncio.ensure_future(anext(notices))
        assert await in_thread(daemon.subscribed.wait, WAIT_S)
        daemon.publish("a:again")
        assert (await waiting).event == "a:again"
        assert notices.reconnects == 1
    assert [request["data"] for request in daemon.requests] == [{"patterns": ["a:*", "b:*"]}] * 2


async def test_a_stream_can_be_iterated_without_a_context_and_ends_with_its_client(daemon: FakeDaemon) -> None:
    seen = []
    async with Client() as client, asyncio.timeout(WAIT_S):
        notices = client.subscribe()
        waiting = asyncio.ensure_future(anext(notices))
        assert await in_thread(daemon.subscribed.wait, WAIT_S)
        daemon.publish("a:one")
        seen.append((await waiting).event)
    assert seen == ["a:one"]
    with pytest.raises(StopAsyncIteration):
        await anext(notices)


async def test_without_reconnect_the_end_of_a_stream_is_an_error(daemon: FakeDaemon) -> None:
    async with Client(reconnect=False) as client, client.subscribe("*") as notices, asyncio.timeout(WAIT_S):
        daemon.hang_up()
        with pytest.raises(errors.ConnectionLost):
            await anext(notices)


async def test_a_refused_subscription_raises_its_error(daemon: FakeDaemon) -> None:
    daemon.answers["message:subscribe"] = fail(code="forbidden", message="not you")
    async with Client() as client:
        with pytest.raises(errors.Forbidden):
            await anext(client.subscribe("*"))
