"""The daemon's settings: one frozen object, read from `ksi.toml` and then from `KSI_*` variables, with the source of each value."""

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from ksi_daemon.errors import BadSettings
from ksi_daemon.view_settings import VIEWS_LIMIT, ViewSettings, check_view_names

CONFIG_LIMIT_BYTES = 1_000_000
NOT_SETTINGS = {"KSI_CONFIG", "KSI_DEBUG", "KSI_TOKEN"}  # read by the command, the launcher and agents' configs
GIVEN_TO_AGENTS = {
    "KSI_MCP_CONFIG", "KSI_MCP_URL", "KSI_AGENT_ID", "KSI_CONVERSATION_ID", "KSI_COMPLETION_ID", "KSI_MODEL", "KSI_RESUMES",
    "KSI_USAGE_FILE", "KSI_RUN",
}  # fmt: skip
FILE_ONLY = {"views"}  # tables, which a variable cannot hold
NEED_RESTART = {
    "host", "port", "var_dir", "audit_key_file", "plugin_dirs", "plugins_disabled", "monitor_events", "notice_inbox",
}  # fmt: skip


class Settings(BaseModel):
    """Everything an operator can set. Each field's description is its one line of help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    var_dir: Path = Field(
        Path("var"),
        description="Folder of the daemon's files. Set it only with KSI_VAR_DIR or --var-dir; without them docs/operators.md says which.",
    )
    audit_key_file: Path | None = Field(
        None,
        description="File of the audit's key, for example outside var/; without it var/run/audit.key. Its folder must exist.",
    )
    host: str = Field("127.0.0.1", description="Address of the HTTP listener; loopback only.")
    port: int = Field(
        8080, ge=0, le=65535, description="Port of the HTTP listener; 0 takes any free port and keeps it over restarts."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Log level; debug adds the details of every call and notice."
    )
    plugin_dirs: tuple[Path, ...] = Field(
        (), description="More folders to search for plugins, besides the shipped ones."
    )
    plugins_disabled: tuple[str, ...] = Field((), description="Plugins that are found but not started.")
    call_timeout_s: float = Field(30.0, gt=0, le=3600, description="Deadline of a call whose handler declares none.")
    result_limit_bytes: int = Field(
        1_000_000, ge=1_000, le=100_000_000, description="Largest result a call may return, encoded as JSON."
    )
    notice_inbox: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description="Notices that may wait for one subscriber before more are dropped and counted.",
    )
    monitor_events: int = Field(
        10_000, ge=100, le=1_000_000, description="Calls and notices that monitor:get_events remembers."
    )
    agent_state_keys: int = Field(
        10_000, ge=0, le=10_000_000, description="How many keys of the state one agent may have set."
    )
    agent_state_bytes: int = Field(
        64 * 1024 * 1024,
        ge=0,
        le=1024**4,
        description="How many bytes these keys may have together, with their values and metadata.",
    )
    completions_at_once: int = Field(
        16, ge=1, le=1_000, description="How many completions of agents may run at once; the others wait."
    )
    completion_timeout_s: float = Field(
        3_600.0, gt=0, le=86_400, description="When a completion is ended, if its caller names no other time."
    )
    rate_limit: Literal["on", "off"] = Field(
        "on", description="Whether agents' rates are limited; off is for load tests."
    )
    trust_headers: bool = Field(
        False,
        description="Let MCP requests without a token be the agent that X-KSI-Agent-ID names, at most restricted; for trying things.",
    )
    old_era_refusal: Literal["json-rpc", "http"] = Field(
        "json-rpc",
        description="A refused call in an MCP session: a JSON-RPC error with HTTP status 200, or with 403 and the like (older clients leave).",
    )
    expose_error_details: bool = Field(
        False, description="Put the error text of a failed handler into the answer, not only into the log."
    )
    views: dict[str, ViewSettings] = Field(
        {}, max_length=VIEWS_LIMIT, description="Views of your own at /mcp/NAME: a table [views.NAME] for each."
    )

    @field_validator("views", mode="before")
    @classmethod
    def _are_named(cls, views: object) -> object:
        if isinstance(views, dict):
            check_view_names(views)
        return views

    @field_validator(
        "port",
        "call_timeout_s",
        "result_limit_bytes",
        "notice_inbox",
        "monitor_events",
        "agent_state_keys",
        "agent_state_bytes",
        mode="before",
    )
    @classmethod
    def _is_not_boolean(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("must be a number")
        return value

    @field_validator("host")
    @classmethod
    def _is_loopback(cls, host: str) -> str:
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ValueError("must be a loopback address such as 127.0.0.1 or ::1: the daemon serves this machine only")
        return host


class SettingsRead(msgspec.Struct, frozen=True):
    """Settings with the file they were read from and the source of each value; what may be plugins' is not checked yet."""

    settings: Settings
    config_file: Path
    sources: dict[str, str]
    plugins: dict[str, Any] = {}  # the tables [plugins.NAME]
    variables: dict[str, str] = {}  # those that are not the daemon's own

    def keeping(self, names: Iterable[str], old: Settings) -> "SettingsRead":
        """A copy with the old values of these settings, which stay in effect until a restart."""
        kept = {name: getattr(old, name) for name in names}
        return msgspec.structs.replace(self, settings=self.settings.model_copy(update=kept))

    def rows(self) -> list[dict[str, Any]]:
        """One row per setting, for `ksi config show` and the docs."""
        values = self.settings.model_dump(mode="json")
        defaults = Settings().model_dump(mode="json")
        return [
            {
                "name": name,
                "value": values[name],
                "default": defaults[name],
                "source": self.sources.get(name, "default"),
                "help": field.description,
            }
            for name, field in Settings.model_fields.items()
        ]

    def warnings(self, plugins: Collection[str]) -> list[str]:
        """What is neither the daemon's nor that of one of these plugins."""
        tables = [
            f"{self.config_file.name}: [plugins.{name}]: there is no plugin named {name!r}{_nearest_plugin(name, plugins)}"
            for name in self.plugins
            if name not in plugins
        ]
        prefixes = tuple(f"KSI_{plugin.upper()}_" for plugin in plugins)
        ignored = [
            f"the variable {variable} is ignored: it is not a known setting"
            + _nearest(variable.removeprefix("KSI_").lower(), "KSI_")
            for variable in self.variables
            if not variable.startswith(prefixes)
        ]
        return tables + ignored

    def as_dict(self, plugin_rows: Iterable[dict[str, Any]] = (), warnings: Sequence[str] = ()) -> dict[str, Any]:
        """The document that `config:show` and `--check-config` print."""
        return {
            "ok": True,
            "config_file": str(self.config_file),
            "config_file_exists": self.config_file.exists(),
            "settings": [*self.rows(), *plugin_rows],
            "problems": [],
            "warnings": list(warnings),
        }


def read_settings(environ: Mapping[str, str] | None = None) -> SettingsRead:
    """Read the file, then the environment over it. Raises `BadSettings` with all problems at once."""
    environ = os.environ if environ is None else environ
    config_file = Path(environ.get("KSI_CONFIG") or "ksi.toml").absolute()
    from_file, plugins, problems = _from_file(config_file)
    from_environment, variables, more_problems = _from_environment(environ)
    problems += more_problems
    sources = dict.fromkeys(from_file, config_file.name) | {name: f"KSI_{name.upper()}" for name in from_environment}
    values = from_file | from_environment
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems += [_problem(sources, detail) for detail in error.errors(include_url=False, include_context=False)]
    if problems:
        raise BadSettings("the settings cannot be used:\n  " + "\n  ".join(problems))
    settings = settings.model_copy(
        update={
            "var_dir": settings.var_dir.expanduser().absolute(),
            "audit_key_file": settings.audit_key_file and config_file.parent / settings.audit_key_file.expanduser(),
            "plugin_dirs": tuple(config_file.parent / folder.expanduser() for folder in settings.plugin_dirs),
        }
    )
    return SettingsRead(
        settings=settings, config_file=config_file, sources=sources, plugins=plugins, variables=variables
    )


def _from_file(path: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    try:
        if path.stat().st_size > CONFIG_LIMIT_BYTES:
            return {}, {}, [f"{path} is larger than {CONFIG_LIMIT_BYTES:,} bytes: is it the right file?"]
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, {}, []
    except (OSError, UnicodeDecodeError) as error:
        return {}, {}, [f"{path} cannot be read: {error}"]
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return {}, {}, [f"{path} is not valid TOML: {error}"]
    plugins = table.pop("plugins", {})
    problems = [
        f"{path.name}: unknown setting {name!r}{_nearest(name)}" for name in table if name not in Settings.model_fields
    ]
    if "var_dir" in table:
        problems.append(
            f"{path.name}: set var_dir with the variable KSI_VAR_DIR instead, so that the ksi command finds it too"
        )
    if not isinstance(plugins, dict):
        problems.append(f"{path.name}: plugins must hold a table [plugins.NAME] for each plugin")
        plugins = {}
    return {name: value for name, value in table.items() if name in Settings.model_fields}, plugins, problems


def _from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    values: dict[str, Any] = {}
    others: dict[str, str] = {}
    problems: list[str] = []
    for variable, text in environ.items():
        name = variable.removeprefix("KSI_").lower()
        if not variable.startswith("KSI_") or variable in NOT_SETTINGS | GIVEN_TO_AGENTS:
            continue
        if name not in Settings.model_fields:
            others[variable] = text
        elif name in FILE_ONLY:
            problems.append(f"{variable} cannot be set: {name} is a table, which only ksi.toml can hold")
        elif name in ("plugin_dirs", "plugins_disabled"):
            values[name] = [part for part in text.replace(os.pathsep, ",").split(",") if part]
        elif text == "" and name != "var_dir":  # an empty KSI_VAR_DIR means the default, as in the command
            problems.append(f"{variable} is empty: give it a value or unset it")
        elif text == "":
            continue
        else:
            values[name] = text
    return values, others, problems


def _nearest_plugin(name: str, plugins: Collection[str]) -> str:
    close = difflib.get_close_matches(name, plugins, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; `ksi plugins ls` lists all plugins"


def _nearest(name: str, prefix: str = "") -> str:
    close = difflib.get_close_matches(name, Settings.model_fields, n=1)
    if not close:
        return "; `ksi config show` lists all settings"
    return f"; did you mean {prefix + (close[0].upper() if prefix else close[0])!r}?"


def _problem(sources: Mapping[str, str], detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    name = path[0] if path[0] not in FILE_ONLY else ".".join(path)
    problem = detail["msg"].removeprefix("Value error, ")
    return f"{name} = {_shown(detail['input'])} (from {sources.get(path[0], 'default')}): {problem}"


def _shown(value: Any) -> str:
    text = TypeAdapter(Any).dump_json(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."
