"""Writes a conversation as Markdown."""

from collections.abc import Sequence

from ksi_daemon.notice import iso_time
from ksi_daemon.storage.completions import Message, StoredConversation

HEADINGS = {"user": "Prompt", "assistant": "Answer"}


def as_markdown(conversation: StoredConversation, messages: Sequence[Message]) -> str:
    """A heading for each message, and one for the whole before the first.

    Texts are as they were written: one that holds headings has them in its place.
    """
    begins = not messages or messages[0].seq == 1
    lines = [f"# Conversation {conversation.conversation_id} of {conversation.agent_id}", ""] if begins else []
    for message in messages:
        lines += [f"## {message.seq}. {HEADINGS[message.role]}, {iso_time(message.at)}", "", message.text.rstrip(), ""]
    return "\n".join([*lines, ""])
