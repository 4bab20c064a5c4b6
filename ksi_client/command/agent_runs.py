"""`ksi agents spawn, ask, tree, logs, attach, terminate, restart`: the agents that the daemon itself runs."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ksi_client.command.complete import complete_agents, complete_profiles
from ksi_client.command.confirm import confirm
from ksi_client.command.durations import seconds
from ksi_client.command.fault import FAILED, NOT_FOUND, TIMED_OUT, USAGE, Fault
from ksi_client.command.screen import Screen
from ksi_client.command.verb import Verb, verb_app
from ksi_client.sync_client import SyncClient
from ksi_client.terminal import visible

app = verb_app()

STDIN = "-"
LOOK_EVERY_S = 0.2
WAIT_PIECE_S = 20.0
_STATES = {"running": "good", "idle": "faint", "frozen": "warn", "terminated": "bad"}

Name = Annotated[str, typer.Argument(help="The agent's id.", autocompletion=complete_agents)]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="End the completion after so long: 90s, 10m, 1h.")
]


@app.command("spawn", cls=Verb)
def spawn_agent(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its id: letters, digits and . _ -")],
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: the program and its arguments (provider command).")
    ] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="What runs it: claude, codex or command.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="Its permissions: see ksi permissions profiles.", autocompletion=complete_profiles)
    ] = "standard",
    parent: Annotated[
        str | None,
        typer.Option(help="Parent agent; the new agent never has more rights than it.", autocompletion=complete_agents),
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder that it works in (default: one of its own).")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of its provider, such as model=…"),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Start its first completion with this; - reads standard input.")
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
) -> None:
    """Add an agent that the daemon runs, and start its first completion if there is a prompt."""
    screen: Screen = context.obj
    options = dict(_pair(text) for text in option or ())
    if command:
        if provider not in (None, "command"):
            raise Fault("a program after -- is for the provider command", exit_code=USAGE, hint="leave --provider out")
        provider, options["command"] = (
            "command",
            [str(Path(command[0]).absolute()) if "/" in command[0] else command[0], *command[1:]],
        )
    wanted = {
        "agent_id": name,
        "profile": profile,
        "parent_id": parent,
        "provider": provider,
        "options": options,
        "workspace": None if workspace is None else str(workspace.absolute()),
        "note": note,
        "prompt": None if prompt is None else _text([prompt]),
    }
    with SyncClient() as client:
        spawned = client.send("agent:spawn", wanted)
    if screen.json:
        screen.document(spawned)
        return
    screen.line(f"spawned {visible(spawned['agent_id'])} with the provider {visible(spawned['provider'])}")
    if spawned["completion_id"] is None:
        screen.note(f"next: ksi agents ask {name} 'a prompt'")
    else:
        screen.note(f"its completion {spawned['completion_id']} has begun; next: ksi agents attach {name}")


@app.command("ask", cls=Verb)
def ask_agent(
    context: typer.Context,
    name: Name,
    prompt: Annotated[list[str], typer.Argument(help="What its model is to do; - reads standard input.")],
    conversation: Annotated[
        str | None, typer.Option("--conversation", "-c", metavar="ID", help="Go on with this conversation.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", "-l", help="Go on with its last conversation.")] = False,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Another model than its own.")] = None,
    timeout: Timeout = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the answer and print it.")] = True,
) -> None:
    """Give an agent a prompt and print its answer."""
    screen: Screen = context.obj
    if last and conversation is not None:
        raise Fault("--last and --conversation exclude each other", exit_code=USAGE)
    with SyncClient() as client:
        if last:
            conversation = _last_conversation(client, name)
        wanted = {
            "agent_id": name,
            "prompt": _text(prompt),
            "conversation_id": conversation,
            "model": model,
            "timeout_s": None if timeout is None else seconds(timeout, "--timeout"),
        }
        asked = client.send("completion:async", wanted)
        if not wait:
            _show_asked(screen, asked)
            return
        try:
            done = wait_for(client, asked["completion_id"])
        except KeyboardInterrupt:
            screen.note(f"it goes on; to end it: ksi completions cancel {asked['completion_id']}")
            raise
    show_answer(screen, done)


def wait_for(client: SyncClient, completion_id: str, *, at_most_s: float | None = None) -> dict[str, Any]:
    """A completion when it has ended."""
    deadline = None if at_most_s is None else time.monotonic() + at_most_s
    while True:
        left_s = WAIT_PIECE_S if deadline is None else min(WAIT_PIECE_S, deadline - time.monotonic())
        if left_s <= 0:
            raise Fault(f"the completion {completion_id} has not ended", exit_code=TIMED_OUT, hint="wait longer")
        found: dict[str, Any] = client.send("completion:wait", {"completion_id": completion_id, "timeout_s": left_s})
        if found["state"] not in ("queued", "running"):
            return found


def show_answer(screen: Screen, done: dict[str, Any]) -> None:
    """The answer on stdout; a completion that did not end well is a fault."""
    if screen.json:
        screen.document(done)
    elif done["text"]:
        _print(done["text"] if done["text"].endswith("\n") else done["text"] + "\n")
    if done["state"] == "done":
        screen.note(
            f"conversation {done['conversation_id']}; to go on: ksi agents ask {done['agent_id']} --last 'a prompt'"
        )
        return
    error = done.get("error") or {"message": f"the completion is {done['state']}"}
    if screen.json:
        raise typer.Exit(FAILED)
    raise Fault(
        str(error["message"]),
        exit_code=FAILED,
        hint=error.get("hint") or f"ksi agents logs {done['agent_id']} --stderr",
    )


@app.command("tree", cls=Verb)
def show_tree(context: typer.Context) -> None:
    """Show agents below their parents."""
    screen: Screen = context.obj
    with SyncClient() as client:
        found = client.send("agent:tree")
    if screen.json:
        screen.document(found)
        return
    screen.table(
        ("agent", "profile", "provider", "state"),
        [
            ("  " * node["depth"] + str(node["agent_id"]), node["profile"], node["provider"], node["state"])
            for node in found["agents"]
        ],
        styles=_STATES,
    )
    if not found["agents"]:
        screen.note("no agents yet; add one with: ksi agents spawn NAME --provider claude")


@app.command("logs", cls=Verb)
def show_logs(
    context: typer.Context,
    name: Name,
    completion: Annotated[
        str | None, typer.Argument(metavar="[COMPLETION]", help="Of this one (default: the last).")
    ] = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="What its program wrote to stderr.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print more as it comes, until the end.")] = False,
) -> None:
    """Print what the program of an agent's completion printed."""
    screen: Screen = context.obj
    stream = "stderr" if stderr else "stdout"
    with SyncClient() as client:
        pages = _pages(client, name, completion, stream, follow=follow)
        if screen.json:
            screen.document({"agent_id": name, "stream": stream, "text": "".join(pages)})
            return
        for page in pages:
            _print(page)


@app.command("attach", cls=Verb)
def attach_to_agent(context: typer.Context, name: Name) -> None:
    """Follow the answer of an agent's running completion until it ends; Ctrl-C leaves it running."""
    screen: Screen = context.obj
    with SyncClient() as client, client.subscribe("completion:*") as notices:
        found = client.send("completion:list", {"agent_id": name, "limit": 1})["completions"]
        if not found or found[0]["state"] not in ("queued", "running"):
            raise Fault(
                f"no completion of {name} is under way", exit_code=NOT_FOUND, hint=f"ksi agents ask {name} 'a prompt'"
            )
        completion_id = found[0]["completion_id"]
        screen.note(f"completion {completion_id} is {found[0]['state']}; Ctrl-C leaves it running")
        before = str(client.send("completion:status", {"completion_id": completion_id})["text"])
        shown = 0 if screen.json else len(_print(before))
        for notice in notices:
            if notice.data.get("completion_id") != completion_id:
                continue
            if notice.event == "completion:progress" and not screen.json:
                text, at = str(notice.data.get("text", "")), int(notice.data.get("at", 0))
                shown = max(shown, at) + len(_print(text[max(0, shown - at) :]))
                for tool in notice.data.get("tools", ()):
                    screen.note(f"calls {tool}")
            elif notice.event not in ("completion:started", "completion:progress"):
                break
        done = client.send("completion:status", {"completion_id": completion_id})
    if shown and done["state"] == "done" and not screen.json:
        return
    show_answer(screen, done)


def _print(text: str) -> str:
    """Print what an agent wrote. Control characters are made visible: it could rewrite the terminal; --json has the exact text."""
    sys.stdout.write(visible(text, multiline=True))
    sys.stdout.flush()
    return text


@app.command("terminate", cls=Verb)
def terminate_agent(
    context: typer.Context,
    name: Name,
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not ask; scripts need it.")] = False,
) -> None:
    """End an agent and all below it: their tokens, processes and configs. Their records stay."""
    screen: Screen = context.obj
    confirm(f"terminate the agent {name} and all below it?", force=force)
    with SyncClient() as client:
        ended = client.send("agent:terminate", {"agent_id": name})
    if screen.json:
        screen.document(ended)
        return
    for agent in ended["agents"]:
        screen.line(f"terminated {visible(str(agent))}")
    screen.note(f"{ended['completions']} completions were ended; to undo: ksi agents restart {name}")


@app.command("restart", cls=Verb)
def restart_agent(context: typer.Context, name: Name) -> None:
    """End an agent's processes and let it act again, also after it was terminated."""
    screen: Screen = context.obj
    with SyncClient() as client:
        ended = client.send("agent:restart", {"agent_id": name})
    if screen.json:
        screen.document(ended)
    else:
        screen.line(f"restarted {visible(name)}, {ended['completions']} completions were ended")


def _pages(client: SyncClient, name: str, completion: str | None, stream: str, *, follow: bool) -> Iterator[str]:
    offset = 0
    while True:
        page = client.send(
            "agent:logs", {"agent_id": name, "completion_id": completion, "stream": stream, "offset": offset}
        )
        completion = page["completion_id"]
        if page["next_offset"] > offset:
            offset = page["next_offset"]
            yield page["text"]
        elif not follow or page["state"] not in ("queued", "running"):
            return
        else:
            time.sleep(LOOK_EVERY_S)


def _last_conversation(client: SyncClient, name: str) -> str:
    found = client.send("conversation:list", {"agent_id": name, "limit": 1})["conversations"]
    if not found:
        raise Fault(f"{name} has no conversation yet", exit_code=NOT_FOUND, hint="leave --last out")
    return str(found[0]["conversation_id"])


def _show_asked(screen: Screen, asked: dict[str, Any]) -> None:
    if screen.json:
        screen.document(asked)
    else:
        screen.line(str(asked["completion_id"]))
        screen.note(f"next: ksi completions wait {asked['completion_id']}")


def _text(words: list[str]) -> str:
    return sys.stdin.read() if words == [STDIN] else " ".join(words)


def _pair(text: str) -> tuple[str, Any]:
    import json

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Fault(f"--option takes KEY=VALUE, not {text!r}", exit_code=USAGE)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
