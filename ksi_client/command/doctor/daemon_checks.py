"""Checks of the daemon: its settings, its lock, socket and process, its port, plugins and health."""

import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from ksi_client.command.doctor.finding import Finding, Site
from ksi_client.command.version import own_version
from ksi_client.paths import socket_file

_LAG_WARN_MS = 100
_LAG_FAIL_MS = 1000
_TIMEOUT_S = 3


def settings(site: Site) -> Iterator[Finding]:
    """The settings file and the environment are valid."""
    if site.settings is None:
        yield Finding("settings", "fail", site.settings_problem or "unknown", "ksi config check")
        return
    for problem in site.settings.get("problems", ()):
        yield Finding(
            "settings", "fail", str(problem), f"edit {site.settings.get('config_file')}, then ksi config check"
        )
    for warning in site.settings.get("warnings", ()):
        yield Finding("settings", "warn", str(warning), f"edit {site.settings.get('config_file')}")
    if site.settings.get("ok"):
        absent = "" if site.settings.get("config_file_exists", True) else " (absent: defaults and environment)"
        yield Finding("settings", "ok", f"{site.settings.get('config_file')}{absent}")


def daemon(site: Site) -> Iterator[Finding]:
    """The process that answers at the socket is the one that holds the lock, or there is neither."""
    stale_socket = socket_file(site.var).exists()
    if site.status is not None:
        answered = site.status.get("pid")
        if site.pid is None:
            yield Finding("daemon", "fail", f"pid {answered} answers without holding the lock", "ksi restart")
        elif answered != site.pid:
            yield Finding("daemon", "fail", f"pid {answered} answers, pid {site.pid} holds the lock", "ksi restart")
        else:
            yield Finding("daemon", "ok", f"running, pid {answered}, holds its lock")
    elif site.pid is not None:
        yield Finding("daemon", "fail", f"pid {site.pid} holds the lock, but: {site.unreachable_reason}", "ksi restart")
    elif stale_socket:
        yield Finding("daemon", "warn", "stopped without cleaning up: a stale socket is left", "ksi start")
    else:
        yield Finding("daemon", "warn", "stopped", "ksi start")


def http_port(site: Site) -> Iterator[Finding]:
    """The daemon answers on its port; without a daemon the port is free."""
    if site.status is not None:
        url = urlsplit(str(site.status.get("url", "")))
        yield _healthz(url.hostname or "127.0.0.1", url.port or 0)
        return
    host, port = str(site.setting("host") or "127.0.0.1"), site.setting("port")
    if not isinstance(port, int) or port == 0:
        yield Finding("http port", "ok", "any free port" if port == 0 else "not known")
        return
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
    except OSError:
        yield Finding("http port", "ok", f"{host}:{port} is free")
    else:
        yield Finding(
            "http port", "fail", f"{host}:{port} is taken by another program", "stop that program, or set KSI_PORT"
        )


def _healthz(host: str, port: int) -> Finding:
    connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        text = answer.read(200).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        return Finding("http port", "fail", f"{host}:{port}/healthz does not answer: {error}", "ksi restart")
    finally:
        connection.close()
    if answer.status == 200:
        return Finding("http port", "ok", f"{host}:{port} answers {text}")
    return Finding("http port", "fail", f"{host}:{port}/healthz answers {answer.status} {text}", "ksi status")


def plugins(site: Site) -> Iterator[Finding]:
    """No plugin is broken."""
    if site.plugins is None:
        yield Finding("plugins", "ok", "not known while the daemon does not answer")
        return
    broken = [plugin for plugin in site.plugins if plugin.get("state") == "broken"]
    for plugin in broken:
        name = plugin.get("name")
        fix = f"fix {plugin.get('path') or 'it'}, then ksi plugins reload {name}"
        yield Finding("plugins", "fail", f"{name} is broken: {plugin.get('reason')}", fix)
    if not broken:
        yield Finding("plugins", "ok", f"{len(site.plugins)}, none broken")


def providers(site: Site) -> Iterator[Finding]:
    """Which programs the daemon can run as agents."""
    if site.providers is None:
        yield Finding("providers", "ok", "not known while the daemon does not answer")
        return
    found = [each for each in site.providers if each.get("program")]
    missing = [
        str(each.get("name")) for each in site.providers if not each.get("program") and each.get("name") != "command"
    ]
    seen = [f"{each.get('name')} is {each.get('program')}" for each in found]
    seen += [f"{name} is not installed" for name in missing]
    yield Finding("providers", "ok", "; ".join(seen) or "none")


def health(site: Site) -> Iterator[Finding]:
    """The event loop is not lagging, no notice was dropped, no alarm is active."""
    if site.health is None:
        yield Finding("health", "ok", "not known while the daemon does not answer")
        return
    for alarm in site.health.get("alarms", ()):
        yield Finding("health", "fail", str(alarm), "ksi status, and var/log/ksi.jsonl")
    lag_ms = float(site.health.get("loop_lag_ms") or 0)
    if lag_ms >= _LAG_WARN_MS:
        status = "fail" if lag_ms >= _LAG_FAIL_MS else "warn"
        fix = "find the plugin that blocks: ksi send monitor:get_stats"
        yield Finding("health", status, f"the event loop lags by {lag_ms:.0f} ms", fix)  # type: ignore[arg-type]
    dropped = int(site.health.get("dropped_notices") or 0)
    if dropped:
        fix = "find the slow reader: ksi send message:subscriptions"
        yield Finding("health", "warn", f"{dropped} notices were dropped", fix)
    if not dropped and lag_ms < _LAG_WARN_MS:
        yield Finding("health", "ok", f"event loop lag {lag_ms:.1f} ms, no notice dropped")


def versions(site: Site) -> Iterator[Finding]:
    """The running daemon has the installed version."""
    own = own_version()
    running = (site.status or {}).get("version")
    if running and not own.startswith("unknown") and running != own:
        yield Finding("versions", "warn", f"the daemon runs {running}, {own} is installed", "ksi restart")
    else:
        yield Finding("versions", "ok", own if not running else f"daemon {running}, command {own}")
