"""Imports plugins in threads of their own, side by side: one that hangs costs the others neither time nor a thread they need.

Checking and starting what was imported is left to the loader.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from ksi_daemon.handler import PluginRefused
from ksi_daemon.plugin import Plugin
from ksi_daemon.plugin_host.discovery import Found
from ksi_daemon.plugin_host.running_plugin import START_LIMIT_S

Imported = tuple[Plugin, str]  # with its one-line summary


async def imported(found: Found) -> Imported:
    """Import in a thread: a module that is slow to import must not block the event loop."""
    try:
        return await asyncio.wait_for(_in_own_thread(found), START_LIMIT_S)
    except TimeoutError:
        raise PluginRefused(f"{found.path} did not finish importing within {START_LIMIT_S:g} s") from None


@asynccontextmanager
async def importing(plugins: Iterable[Found]) -> AsyncIterator[dict[str, asyncio.Task[Imported]]]:
    """Import all of these at once, the first of each name; the time limit of each begins now. Yields the imports by name."""
    first: dict[str, Found] = {}
    for found in plugins:
        first.setdefault(found.name, found)
    tasks = {
        name: asyncio.create_task(imported(found), name=f"import of the plugin {name}") for name, found in first.items()
    }
    try:
        yield dict(tasks)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)  # failures were raised where each was awaited


def _in_own_thread(found: Found) -> asyncio.Future[Imported]:
    """Not one of the pool that everybody shares: an import that hangs would keep it for ever."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Imported] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Imported | None, error: BaseException | None) -> None:
        if done.done():
            return
        if result is not None:
            done.set_result(result)
        elif error is not None:
            done.set_exception(error)

    def run() -> None:
        result: Imported | None = None
        failure: Exception | None = None
        try:
            result = context.run(_import_now, found)
        except Exception as error:  # noqa: BLE001 - raised again where the import is awaited
            failure = error
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=f"import of {found.name}", daemon=True).start()
    return done


def _import_now(found: Found) -> Imported:
    try:
        return found.load()
    except StopIteration as error:  # a future cannot hold it
        raise PluginRefused(f"{found.path} raised {error!r} while it was imported") from error
    except Exception:
        raise
    except BaseException as error:
        raise PluginRefused(f"{found.path} raised {error!r} while it was imported") from error
