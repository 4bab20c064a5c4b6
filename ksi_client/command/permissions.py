"""`ksi permissions`: show, grant and revoke what agents may do; each change lists the tools gained and lost."""

from typing import Annotated, Any

import typer

from ksi_client.command.complete import complete_agents, complete_profiles
from ksi_client.command.durations import seconds
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app("Show and change what agents may do.")

_Agent = Annotated[str, typer.Argument(help="The agent's id.", autocompletion=complete_agents)]
_Resource = Annotated[str, typer.Argument(help="Such as 'events/notes:*'; * is one segment, at the end one or more.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]


@app.command("show", cls=Verb)
def show_permissions(context: typer.Context, agent: _Agent) -> None:
    """Show what an agent may do now: its profile, its grants, its tools."""
    screen: Screen = context.obj
    with SyncClient() as client:
        held = client.send("permission:get_agent", {"agent_id": agent})
    _show_held(screen, held)


@app.command("grant", cls=Verb)
def grant(
    context: typer.Context,
    agent: _Agent,
    resource: _Resource,
    access: Annotated[
        str | None,
        typer.Option(
            metavar="read|write|execute|none",
            help="write includes read, none forbids (default: execute for scopes and operations, else write).",
        ),
    ] = None,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Duration: 30s, 5m, 1h, 2d (default: until revoked).")
    ] = None,
    dry_run: _DryRun = False,
) -> None:
    """Grant an agent access to a resource, or forbid it, from its next call on."""
    wanted: dict[str, Any] = {"agent_id": agent, "resource": resource, "dry_run": dry_run}
    if access is not None:
        wanted["access"] = access
    if lasting is not None:
        wanted["for_s"] = seconds(lasting, "--for")
    with SyncClient() as client:
        _show_change(context.obj, "grant", client.send("permission:grant", wanted))


@app.command("revoke", cls=Verb)
def revoke(context: typer.Context, agent: _Agent, resource: _Resource, dry_run: _DryRun = False) -> None:
    """Revoke a grant, from the agent's next call on."""
    wanted = {"agent_id": agent, "resource": resource, "dry_run": dry_run}
    with SyncClient() as client:
        _show_change(context.obj, "revoke", client.send("permission:revoke", wanted))


@app.command("set", cls=Verb)
def set_profile(
    context: typer.Context,
    agent: _Agent,
    profile: Annotated[str, typer.Argument(help="The new profile.", autocompletion=complete_profiles)],
) -> None:
    """Change an agent's profile, from its next call on."""
    screen: Screen = context.obj
    with SyncClient() as client:
        before = set(client.send("permission:get_agent", {"agent_id": agent}).get("allowed_tools", ()))
        held = client.send("permission:set_agent", {"agent_id": agent, "profile": profile})
    if screen.json:
        screen.document(held)
        return
    screen.line(f"{visible(str(held['agent_id']))} has the profile {visible(str(held['profile']))}")
    after = set(held.get("allowed_tools", ()))
    _show_difference(screen, sorted(after - before), sorted(before - after))


@app.command("profiles", cls=Verb)
def profiles(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Show this profile.", autocompletion=complete_profiles)] = None,
) -> None:
    """List the profiles, or show one with its grants and its rate limit."""
    screen: Screen = context.obj
    event, wanted = ("permission:get_profile", {"level": name}) if name else ("permission:list_profiles", {})
    with SyncClient() as client:
        found = client.send(event, wanted)
    if screen.json:
        screen.document(found)
    elif not name:
        screen.table(
            ("profile", "includes", "grants", "description"),
            [
                (
                    profile["name"],
                    ",".join(profile.get("includes", ())),
                    len(profile.get("grants", ())),
                    profile.get("description"),
                )
                for profile in found["profiles"]
            ],
        )
    else:
        profile = found["profile"]
        screen.facts({key: value for key, value in profile.items() if key != "grants"})
        screen.line()
        columns = ("resource", "access")
        screen.table(columns, [[rule.get(column) for column in columns] for rule in profile.get("grants", ())])


def _show_held(screen: Screen, held: dict[str, Any]) -> None:
    if screen.json:
        screen.document(held)
        return
    named = ("agent_id", "profile", "frozen", "allowed_modules", "allowed_tools", "disallowed_tools")
    screen.facts({key: held.get(key) for key in named})
    if grants := held.get("grants"):
        screen.line()
        screen.table(
            ("grant", "access", "expires", "by"),
            [
                (
                    grant.get("resource"),
                    grant.get("access"),
                    screen.moment(grant.get("expires_at")),
                    grant.get("created_by"),
                )
                for grant in grants
            ],
            styles={"none": "bad"},
        )


def _show_change(screen: Screen, verb: str, change: dict[str, Any]) -> None:
    if screen.json:
        screen.document(change)
        return
    resource, agent = visible(str(change["resource"])), visible(str(change["agent_id"]))
    right = f"{visible(str(change['access']))} on {resource}" if change.get("access") else resource
    until = f" until {screen.moment(change['expires_at'])}" if change.get("expires_at") else ""
    past = f"{verb}ed" if verb == "grant" else f"{verb}d"
    action = past if change.get("applied") else f"would {verb}"
    screen.line(f"{action} {right} {'to' if verb == 'grant' else 'from'} {agent}{until}")
    _show_difference(screen, change.get("gained", ()), change.get("lost", ()))


def _show_difference(screen: Screen, gained: list[str], lost: list[str]) -> None:
    for tool in gained:
        screen.line(screen.paint(f"+ {visible(str(tool))}", "good"))
    for tool in lost:
        screen.line(screen.paint(f"- {visible(str(tool))}", "bad"))
    if not gained and not lost:
        screen.note("no tool gained or lost")
