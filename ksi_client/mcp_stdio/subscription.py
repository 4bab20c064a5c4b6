"""The notices of one `subscriptions/listen`, which the bridge sends again when its stream breaks."""

import json
from collections.abc import Callable

from ksi_client.mcp_stdio.message import SUBSCRIPTION_KEY, Message, encode

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CHANGES = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}


class Subscription:
    """Passes notices on. The client sees one acknowledgement; each later one becomes the news that every list may have changed."""

    def __init__(self, request: Message, write: Callable[[bytes], None]) -> None:
        self._request = request
        self._write = write
        self._is_acknowledged = False

    def take(self, line: bytes) -> None:
        """A notice from the stream."""
        fields = json.loads(line)
        if not isinstance(fields, dict) or fields.get("method") != ACKNOWLEDGED or not self._is_acknowledged:
            self._is_acknowledged = True  # the acknowledgement is the first notice of a stream
            self._write(line)
            return
        accepted = fields.get("params", {}).get("notifications", {})
        for kind, method in CHANGES.items():
            if accepted.get(kind):
                meta = {SUBSCRIPTION_KEY: self._request.id}
                self._write(encode({"jsonrpc": "2.0", "method": method, "params": {"_meta": meta}}))
