"""The views that the operator defines in `ksi.toml`, beside those of the plugins. Which events a pattern means is looked up whenever the
events change, because plugins come and go.
"""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping

from ksi_daemon.config import Settings
from ksi_daemon.identifiers import matches
from ksi_daemon.routing.route import Route
from ksi_daemon.routing.router import Router
from ksi_daemon.view import View, ViewTool
from ksi_daemon.view_settings import ViewSettings


class Views:
    """Every view that is served. A plugin's goes before an operator's of the same name."""

    def __init__(
        self, router: Router, settings: Callable[[], Settings], of_plugins: Callable[[], Mapping[str, View]]
    ) -> None:
        self._router = router
        self._settings = settings
        self._of_plugins = of_plugins

    def __call__(self) -> dict[str, View]:
        """The views at this moment, by name."""
        routes = self._router.routes
        defined = {name: operator_view(name, view, routes) for name, view in self._settings().views.items()}
        return {**defined, **self._of_plugins()}

    def problems(self, settings: Settings) -> list[str]:
        """The operator's views that cannot be served with these settings because a plugin has one of that name."""
        return [
            f"[views.{name}]: a plugin has a view of this name; choose another"
            for name in sorted(settings.views.keys() & self._of_plugins().keys())
        ]

    def warnings(self) -> list[str]:
        """What the operator should know of the views in the settings: those not served, and events that do not exist now."""
        routes, settings = self._router.routes, self._settings()
        unknown = [
            f"[views.{name}]: there is no event {pattern!r} now{_nearest(pattern, routes)}"
            for name, view in settings.views.items()
            for pattern in (*view.tools, *view.rename, *view.hide)
            if not any(matches(pattern, event) for event in routes)
        ]
        return [*self.problems(settings), *dict.fromkeys(unknown)]


def operator_view(name: str, defined: ViewSettings, routes: Mapping[str, Route]) -> View:
    """A view with the events that exist, in the order of its patterns."""
    chosen = _chosen(defined, routes)
    return View(name, [ViewTool(defined.rename.get(event, routes[event].handler.tool), event) for event in chosen])


def _chosen(defined: ViewSettings, events: Collection[str]) -> Iterator[str]:
    left = sorted(event for event in events if not any(matches(pattern, event) for pattern in defined.hide))
    for pattern in defined.tools:
        yield from (event for event in left if matches(pattern, event))
        left = [event for event in left if not matches(pattern, event)]


def _nearest(event: str, events: Collection[str]) -> str:
    close = difflib.get_close_matches(event, events, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; perhaps its plugin does not run"
