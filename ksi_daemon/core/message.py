"""Messages: publish notices of one's own, and choose which notices reach one's stream."""

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
    data: dict[str, JsonValue] = Field({}, description="What there is to say.")


class Published(Result):
    id: str
    matched: int
    dropped: int


@plugin.handles("message:publish")
async def publish(ctx: Context, params: Publish) -> Published:
    """Tell everyone who subscribed to this notice. Never waits; says how many heard it and how many were too busy."""
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
    """Hear notices on this connection from now on."""
    mailbox, gate, principal = _mailbox(ctx), ctx.capability(Gate), ctx.principal
    if principal.agent_id is not None:  # from now on this stream brings only what the agent may hear, at each moment
        mailbox.permits = lambda event: gate.hears(principal, event)
    mailbox.subscribe(params.patterns)
    return Subscribed(patterns=sorted(mailbox.patterns))


@plugin.handles("message:unsubscribe")
async def unsubscribe(ctx: Context, params: SomePatterns) -> Subscribed:
    """Hear these notices no more on this connection."""
    mailbox = _mailbox(ctx)
    mailbox.unsubscribe(params.patterns or set(mailbox.patterns))
    return Subscribed(patterns=sorted(mailbox.patterns))


class Subscription(Result):
    subscriber: str
    patterns: list[str]
    delivered: int
    dropped: int
    waiting: int


class Subscriptions(Result):
    subscriptions: list[Subscription]


@plugin.handles("message:subscriptions", reads=True)
async def subscriptions(ctx: Context, params: Nothing) -> Subscriptions:
    """List who hears what, and how many notices each has taken, has waiting and has lost."""
    return Subscriptions(
        subscriptions=[
            Subscription(
                subscriber=box.name,
                patterns=sorted(box.patterns),
                delivered=box.delivered,
                dropped=box.dropped,
                waiting=len(box.waiting),
            )
            for box in ctx.capability(Bus).mailboxes()
            if box.patterns
        ]
    )


def _mailbox(ctx: Context) -> Mailbox:
    mailbox = ctx.capability(Bus).mailbox(ctx.principal.mailbox or "")
    if mailbox is None:
        raise Conflict(
            "this caller has no stream that notices could be sent to", hint="subscribe on a connection that stays open"
        )
    return mailbox
