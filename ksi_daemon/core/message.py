"""Messages: publish notices, and choose which notices a connection receives."""

from ksi_daemon.gate.gate import Gate
from ksi_daemon.identifiers import EVENT_NAME, namespace_of
from ksi_daemon.plugin import Conflict, Context, Field, Forbidden, JsonValue, Nothing, Params, Plugin, Result
from ksi_daemon.plugin_host.loader import Loader
from ksi_daemon.routing.bus import Bus, Mailbox
from ksi_daemon.routing.router import Router

plugin = Plugin("message", uses=[Router, Bus, Loader, Gate])

NOTICE = f"^(?:{EVENT_NAME.pattern})$"


class Publish(Params):
    event: str = Field(
        pattern=NOTICE, description="The notice's name, in a namespace that no plugin owns: build:finished."
    )
    data: dict[str, JsonValue] = Field({}, description="The notice's data.")


class Published(Result):
    id: str
    matched: int
    dropped: int


@plugin.handles("message:publish")
async def publish(ctx: Context, params: Publish) -> Published:
    """Send a notice to every subscriber. Never waits; returns how many received it and how many had no space left."""
    router = ctx.capability(Router)
    owner, loader = namespace_of(params.event), ctx.capability(Loader)
    if owner in loader.running or owner in loader.set_aside:
        raise Forbidden(
            f"notices named {owner}:… are sent by the plugin {owner!r} alone", hint="choose a namespace of your own"
        )
    notice, (matched, dropped) = router.publish(
        params.event, params.data, principal=ctx.principal, parent=ctx, foreign=True
    )
    return Published(id=notice.id, matched=matched, dropped=dropped)


class Patterns(Params):
    patterns: list[str] = Field(min_length=1, max_length=100, description="Notice names, namespace:* or *.")


class SomePatterns(Params):
    patterns: list[str] = Field([], max_length=100, description="Those to drop; none means all.")


class Subscribed(Result):
    patterns: list[str]


@plugin.handles("message:subscribe")
async def subscribe(ctx: Context, params: Patterns) -> Subscribed:
    """Receive notices on this connection from now on; an agent receives those that it may read at that moment."""
    mailbox, gate, principal = _mailbox(ctx), ctx.capability(Gate), ctx.principal
    mailbox.subscribe(
        params.patterns,
        name=principal.label,
        permits=None if principal.agent_id is None else lambda event: gate.receives(principal, event),
    )
    return Subscribed(patterns=sorted(mailbox.patterns_of(principal.label)))


@plugin.handles("message:unsubscribe")
async def unsubscribe(ctx: Context, params: SomePatterns) -> Subscribed:
    """Receive these notices no more on this connection."""
    mailbox, name = _mailbox(ctx), ctx.principal.label
    mailbox.unsubscribe(params.patterns or mailbox.patterns_of(name), name=name)
    return Subscribed(patterns=sorted(mailbox.patterns_of(name)))


class Subscription(Result):
    subscriber: str = Field(description="The stream that the notices go to.")
    principal: str = Field(description="Who subscribed: operator, agent/NAME or plugin/NAME.")
    patterns: list[str]
    delivered: int
    dropped: int
    waiting: int


class Subscriptions(Result):
    subscriptions: list[Subscription]


@plugin.handles("message:subscriptions", reads=True)
async def subscriptions(ctx: Context, params: Nothing) -> Subscriptions:
    """List subscriptions, and how many notices each stream has taken, has waiting and has lost. An agent sees its own."""
    principal = ctx.principal
    return Subscriptions(
        subscriptions=[
            Subscription(
                subscriber=mailbox.name,
                principal=subscriber.name,
                patterns=sorted(subscriber.patterns),
                delivered=mailbox.delivered,
                dropped=mailbox.dropped,
                waiting=len(mailbox.waiting),
            )
            for mailbox in ctx.capability(Bus).mailboxes()
            for subscriber in mailbox.subscribers.values()
            if principal.agent_id is None or subscriber.name == principal.label
        ]
    )


def _mailbox(ctx: Context) -> Mailbox:
    mailbox = ctx.capability(Bus).mailbox(ctx.principal.mailbox or "")
    if mailbox is None:
        raise Conflict(
            "this caller has no stream that notices could be sent to", hint="subscribe on a connection that stays open"
        )
    return mailbox
