"""The settings of all plugins: which table and which variables are whose, as rows to show and as warnings.

What a plugin's settings may be is in its model; starting a plugin again with new ones is left to the loader.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ksi_daemon.config import SettingsRead
from ksi_daemon.handler import PluginRefused
from ksi_daemon.plugin import Plugin
from ksi_daemon.plugin_settings import PluginSettingsRead, nearest, read_plugin_settings, shown, variable


class SettingsOfPlugins:
    """`read` returns the settings in effect, `in_use` those of the running plugins, `names` which plugins there are and whether each runs."""

    def __init__(
        self,
        read: Callable[[], SettingsRead],
        in_use: Callable[[], Mapping[str, PluginSettingsRead]],
        names: Callable[[], Mapping[str, bool]],
    ) -> None:
        self.kept: dict[str, str] = {}  # running plugins that could not take their new settings, and why
        self._read = read
        self._in_use = in_use
        self._names = names

    def of(self, plugin: Plugin) -> PluginSettingsRead | None:
        """The plugin's settings as they are now in the file and the environment. Raises `BadPluginSettings`."""
        if plugin.settings is None:
            return None
        read = self._read()
        table = read.plugins.get(plugin.name, {})
        return read_plugin_settings(
            plugin.name, plugin.settings, table, variables=read.variables, file=read.config_file.name
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row per setting of a running plugin; of others, what the file holds."""
        in_use = self._in_use()
        rows = [row for settings in in_use.values() for row in settings.rows()]
        return sorted([*rows, *unchecked_rows(self._read(), besides=in_use)], key=lambda row: str(row["name"]))

    def warnings(self) -> list[str]:
        """What in the settings fits no plugin that was found, or could not be applied."""
        read, in_use, names = self._read(), self._in_use(), self._names()
        running = {
            name for name, runs in names.items() if runs
        }  # of a plugin that does not run, nobody knows the settings
        used = {variable(name, field) for name, settings in in_use.items() for field in settings.fields}
        unused = [(text, _owner(text, names)) for text in read.variables if text not in used]
        return [
            *read.warnings(names),
            *self.kept.values(),
            *(
                f"{read.config_file.name}: [plugins.{name}]: this plugin has no settings"
                for name in read.plugins
                if name in running and name not in in_use
            ),
            *(
                f"the variable {text} is ignored: it is not a setting of the plugin {name}"
                + nearest(text.removeprefix(variable(name)).lower(), in_use[name].fields if name in in_use else ())
                for text, name in unused
                if name in running
            ),
        ]

    def refuse_shared_variables(self, plugin: Plugin) -> None:
        """Raise when a variable would mean this plugin's setting and another one's: `a_b` + `c` and `a` + `b_c`."""
        taken = {
            variable(name, field): f"{name}.{field}"
            for name, settings in self._in_use().items()
            if name != plugin.name
            for field in settings.fields
        }
        for field in () if plugin.settings is None else plugin.settings.model_fields:
            owned = variable(plugin.name, field)
            if owned in taken:
                raise PluginRefused(
                    f"{plugin.name}: its setting {field} and {taken[owned]} would both be the variable {owned}"
                )


def unchecked_rows(read: SettingsRead, *, besides: Collection[str] = ()) -> list[dict[str, Any]]:
    """A row for each key of the tables of plugins that do not run: what it means only the plugin knows."""
    return [
        {
            "name": f"plugins.{plugin}.{name}",
            "value": shown(name, value),
            "default": None,
            "source": read.config_file.name,
            "help": "",
        }
        for plugin, table in read.plugins.items()
        if plugin not in besides and isinstance(table, Mapping)
        for name, value in table.items()
    ]


def _owner(text: str, names: Collection[str]) -> str:
    """The plugin that a variable is meant for: the longest name that it begins with, or none."""
    return max((name for name in names if text.startswith(variable(name))), key=len, default="")
