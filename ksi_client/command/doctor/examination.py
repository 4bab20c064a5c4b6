"""Collects the state of an installation and runs every check on it. A check that raises is reported as a finding."""

from collections.abc import Callable, Iterator
from typing import Any

from ksi_client.command.doctor import audit_checks, daemon_checks, file_checks, machine_checks
from ksi_client.command.doctor.finding import Finding, Site
from ksi_client.command.fault import Fault
from ksi_client.command.lock import holder
from ksi_client.command.settings import check_settings
from ksi_client.errors import KsiError
from ksi_client.paths import socket_file, var_dir
from ksi_client.sync_client import SyncClient

Check = Callable[[Site], Iterator[Finding]]

CHECKS: dict[str, Check] = {
    "var folder": file_checks.var_folder,
    "private files": file_checks.private_files,
    "settings": daemon_checks.settings,
    "daemon": daemon_checks.daemon,
    "http port": daemon_checks.http_port,
    "plugins": daemon_checks.plugins,
    "providers": daemon_checks.providers,
    "health": daemon_checks.health,
    "versions": daemon_checks.versions,
    "databases": file_checks.databases,
    "audit files": audit_checks.audit_files,
    "audit chain": audit_checks.audit_chain,
    "audit outcomes": audit_checks.audit_outcomes,
    "agents": audit_checks.frozen_agents,
    "log": file_checks.log,
    "last output": file_checks.last_output,
    "socket path": file_checks.socket_path,
    "disk": machine_checks.disk,
    "filesystem": machine_checks.filesystem,
    "open files": machine_checks.open_files,
    "sqlite": machine_checks.sqlite,
    "clock": machine_checks.clock,
}
OF_ANY_FOLDER = ("var folder", "settings", "sqlite", "clock")  # when the var folder is not KSI's


def examine() -> list[Finding]:
    """All findings, in the order of the table above."""
    site = _collect()
    checks = CHECKS if site.is_known else {name: CHECKS[name] for name in OF_ANY_FOLDER}
    return [finding for name, check in checks.items() for finding in _run(name, check, site)]


def _run(name: str, check: Check, site: Site) -> list[Finding]:
    try:
        return list(check(site))
    except Exception as error:  # noqa: BLE001  (the other checks still run)
        return [Finding(name, "fail", f"the check itself failed: {type(error).__name__}: {error}", "ksi doctor -v")]


def _collect() -> Site:
    var = var_dir()
    settings: dict[str, Any] | None = None
    settings_problem = unreachable_reason = None
    try:
        settings = check_settings()
    except Fault as fault:
        settings_problem = fault.message
    status = health = plugins = agents = providers = None
    try:
        with SyncClient(socket_file(var), timeout_s=5) as client:
            status = client.send("system:status")
            health = client.send("system:health")
            plugins = client.send("plugin:list")["plugins"]
            agents = client.send("agent:list")["agents"]
            providers = client.send("completion:providers")["providers"]
    except KsiError as error:
        unreachable_reason = error.message
    return Site(
        var=var,
        pid=holder(var),
        settings=settings,
        settings_problem=settings_problem,
        status=status,
        health=health,
        plugins=plugins,
        unreachable_reason=unreachable_reason,
        agents=agents,
        providers=providers,
    )
