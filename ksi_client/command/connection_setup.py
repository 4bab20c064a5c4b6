"""Gives an MCP client its entry: a new token and a merged file, and the token of an earlier entry in that file revoked."""

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ksi_client.command.client_config import merged
from ksi_client.command.screen import Screen
from ksi_client.command.secret_file import Replaced, SecretFile
from ksi_client.errors import KsiError
from ksi_client.sync_client import SyncClient

LABEL_LIMIT = 100
GIT_WAIT_S = 5
DEFAULT_ENTRY = "ksi"


class SetUp(NamedTuple):
    """What was done for a client."""

    answer: dict[str, Any]  # of agent:config
    replaced: Replaced
    revoked: list[str]


def token_label(client: str, path: Path, entry_name: str) -> str:
    """The label of the token in a client's file, by which a later run finds it."""
    label = f"{client} {path}" if entry_name == DEFAULT_ENTRY else f"{client} {path} {entry_name}"
    if len(label) <= LABEL_LIMIT:
        return label
    digest = hashlib.sha256(label.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{client} {digest} …{label[-60:]}"


def earlier_tokens(ksi: SyncClient, label: str) -> list[dict[str, Any]]:
    """The live tokens that were made for the same file, oldest first."""
    tokens = ksi.send("token:list")["tokens"]
    return [token for token in tokens if token.get("label") == label and token.get("state") == "live"]


def set_up(
    ksi: SyncClient,
    screen: Screen,
    file: SecretFile,
    *,
    agent_of: Callable[[list[dict[str, Any]]], str],
    wanted: dict[str, Any],
) -> SetUp:
    """Make a token for the agent that `agent_of` chooses, given the earlier tokens, and merge its entry into the file."""
    client, entry_name = wanted["client"], wanted["entry_name"]
    merged(file.path, file.text, client=client, entry_name=entry_name, entry={})  # refused before anything is made
    label = token_label(client, file.path, entry_name)
    earlier = earlier_tokens(ksi, label)
    answer = ksi.send("agent:config", wanted | {"agent_id": agent_of(earlier), "label": label})
    try:
        text = merged(
            file.path, file.text, client=client, entry_name=entry_name, entry=answer["entry"], inputs=answer["inputs"]
        )
        replaced = file.replace(text)
    except BaseException:
        _revoke(ksi, screen, answer["credential_id"], what="the new, unused token")
        raise
    ids = [token["credential_id"] for token in earlier]
    return SetUp(answer, replaced, [found for found in ids if _revoke(ksi, screen, found, what="the earlier token")])


def show_file_notes(screen: Screen, done: SetUp) -> None:
    """Notes on what was done with the file, and on what must not be done with it."""
    replaced = done.replaced
    if replaced.backup is not None:
        screen.note(f"what was there: {replaced.backup}")
    if replaced.mode_before is not None and replaced.mode_before != 0o600:
        screen.note(f"its mode was {replaced.mode_before:04o} and is now 0600")
    if done.revoked:
        screen.note("the token of the entry before is revoked; a backup that holds it does not work any more")
    if done.answer.get("token") is None and not _git_ignores(replaced.path):
        screen.note(
            f"warning: {replaced.path.name} holds a secret and git does not ignore it: never commit it or its backups. "
            f"Add {replaced.path.name}* to .gitignore, or use --env, which keeps the token out of the file"
        )


def _git_ignores(path: Path) -> bool:
    """Whether the file is outside of any git work tree, or ignored in it."""
    words = ["git", "-C", str(path.parent), "-c", "core.fsmonitor=false", "check-ignore", "--quiet", "--", path.name]
    try:
        done = subprocess.run(words, capture_output=True, timeout=GIT_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True  # without git there is nothing to commit with
    return done.returncode != 1  # 0: ignored, 1: not ignored, 128: no work tree


def _revoke(ksi: SyncClient, screen: Screen, credential_id: str, *, what: str) -> bool:
    """Revoke a token, or say how to: the file is what it should be in either case. Returns whether it is revoked."""
    try:
        ksi.send("token:revoke", {"credential_id": credential_id})
    except KsiError as error:
        screen.note(f"{what} could not be revoked: {error.message}")
        screen.note(f"next: ksi tokens revoke {credential_id}")
        return False
    return True
