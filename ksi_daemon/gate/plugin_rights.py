"""What plugins may call by themselves: their own events, and those that their manifests declare.

A plugin's code is trusted, so a declaration needs nobody's consent; it keeps a defect small and shows what a plugin is for.
"""

from collections.abc import Sequence

from ksi_daemon.errors import Forbidden
from ksi_daemon.gate.grants import Chain, Decision, Rule, RuleSet
from ksi_daemon.gate.judgement import Judgement
from ksi_daemon.handler import Handler

NOTHING = Chain(())


class PluginRights:
    """The rights of each plugin, replaced when a version of it starts."""

    def __init__(self) -> None:
        self._rights: dict[str, Chain] = {}

    def declare(self, plugin: str, calls: Sequence[str]) -> None:
        """From now on the plugin may call its own events and these: exact ones, or namespace:*."""
        own = Rule(f"events/{plugin}:*", "write", f"the plugin {plugin}")
        declared = [Rule(f"events/{pattern}", "write", f"calls of the plugin {plugin}") for pattern in calls]
        self._rights[plugin] = Chain([RuleSet([own, *declared])])

    def forget(self, plugin: str) -> None:
        """The plugin does not run any more."""
        self._rights.pop(plugin, None)

    def judge(self, plugin: str, handler: Handler, *, now: float) -> Judgement:
        """What is decided about a plugin and a handler. What it may call, it may call with all that the handler needs.

        The operator's own events stay the operator's, also when a pattern takes them in; a plugin's own are its own.
        """
        rights = self._rights.get(plugin, NOTHING)
        event = rights.decide(*handler.needs[0], now)
        further = [
            Decision(event.allowed, resource, need, "as the event itself", event.rule)
            for resource, need in handler.needs[1:]
        ]
        operator_only = handler.traits.operator_only and handler.plugin != plugin
        return Judgement(plugin, handler.event, handler.tool, (event, *further), operator_only=operator_only)


def refusal(judgement: Judgement) -> Forbidden:
    """Why a plugin may not call something, for its author."""
    plugin, event = judgement.agent_id, judgement.event
    if judgement.operator_only:
        return Forbidden(f"the plugin {plugin} may not call {event}: it is for the operator alone")
    return Forbidden(
        f"the plugin {plugin} may not call {event} by itself", hint=f'declare it: Plugin("{plugin}", calls=["{event}"])'
    )
