"""Makes agents of a running daemon models of LiteLLM, named `claude-cli/<model>`, for programs that use that library.

    from ksi_client import litellm_provider
    litellm_provider.register()
    litellm.completion("claude-cli/sonnet", messages=[...], agent_id="scout", conversation_id="trip")

`claude-cli/default` leaves the model to the agent. Without `conversation_id` all messages are one prompt of a new
conversation; with it the daemon has the history, and only what follows the last answer is sent. Answers are not streamed.
LiteLLM is imported by `register`, not before: that takes seconds.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ksi_client.client import Client
from ksi_client.errors import Invalid, KsiError, TimedOut, Unavailable
from ksi_client.sync_client import SyncClient

PROVIDER = "claude-cli"
AGENTS_OWN_MODEL = "default"
ENDED = frozenset({"done", "failed", "cancelled", "interrupted"})
DEFAULT_LIMIT_S = 600.0
ASK_AGAIN_S = 30.0
CANCEL_S = 5.0
STATUS = {"timed_out": 408, "cancelled": 499, "not_logged_in": 401, "model_unavailable": 503, "mcp_not_connected": 503}
STATUS_OF_ERROR = {
    "invalid": 400, "unauthenticated": 401, "forbidden": 403, "not_found": 404, "unknown_event": 404, "conflict": 409,
    "timed_out": 408, "too_large": 413, "too_many": 429, "unavailable": 503, "unreachable": 503,
}  # fmt: skip


class HubModel:
    """Sends a list of messages to an agent and waits for its answer."""

    def __init__(self, socket_path: str | Path | None = None) -> None:
        self._socket_path = socket_path

    def answer(
        self, model: str, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], limit_s: float
    ) -> dict[str, Any]:
        """The completion when it is done. One that nobody waits for any more is cancelled."""
        with SyncClient(self._socket_path) as client:
            request = request_for(model, messages, options, limit_s)
            completion_id = client.send("completion:async", request)["completion_id"]
            until = time.monotonic() + limit_s
            try:
                while (pause_s := _pause_s(until)) > 0:
                    wait = {"completion_id": completion_id, "timeout_s": pause_s}
                    shown = client.send("completion:wait", wait, timeout_s=pause_s + CANCEL_S)
                    if shown["state"] in ENDED:
                        return _done(shown)
                raise _late(completion_id, limit_s)
            except BaseException as error:
                if _is_abandoned(error):
                    with suppress(KsiError):
                        client.send("completion:cancel", {"completion_id": completion_id}, timeout_s=CANCEL_S)
                raise

    async def answer_async(
        self, model: str, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], limit_s: float
    ) -> dict[str, Any]:
        """The same, without blocking."""
        async with Client(self._socket_path) as client:
            request = request_for(model, messages, options, limit_s)
            completion_id = (await client.send("completion:async", request))["completion_id"]
            until = time.monotonic() + limit_s
            try:
                while (pause_s := _pause_s(until)) > 0:
                    wait = {"completion_id": completion_id, "timeout_s": pause_s}
                    shown = await client.send("completion:wait", wait, timeout_s=pause_s + CANCEL_S)
                    if shown["state"] in ENDED:
                        return _done(shown)
                raise _late(completion_id, limit_s)
            except BaseException as error:
                if _is_abandoned(error):
                    with suppress(KsiError):
                        await client.send("completion:cancel", {"completion_id": completion_id}, timeout_s=CANCEL_S)
                raise


def register(socket_path: str | Path | None = None) -> None:
    """Add the provider `claude-cli` to LiteLLM, or replace it. `socket_path` is the daemon's; by default as for `ksi`."""
    import litellm

    others = [entry for entry in litellm.custom_provider_map if entry["provider"] != PROVIDER]
    litellm.custom_provider_map = [*others, {"provider": PROVIDER, "custom_handler": _handler(HubModel(socket_path))}]


def request_for(
    model: str, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], limit_s: float
) -> dict[str, Any]:
    """The data of `completion:async`."""
    agent_id, conversation_id = options.get("agent_id"), options.get("conversation_id")
    if not isinstance(agent_id, str):
        raise Invalid("agent_id is missing", hint='completion(..., agent_id="scout"); ksi agents ls shows the agents')
    request = {
        "agent_id": agent_id,
        "prompt": prompt_for(messages, continues=conversation_id is not None),
        "timeout_s": limit_s,
    }
    if conversation_id is not None:
        request["conversation_id"] = conversation_id
    if model != AGENTS_OWN_MODEL:
        request["model"] = model
    return request


def prompt_for(messages: Sequence[Mapping[str, Any]], *, continues: bool) -> str:
    """The messages as one prompt; if it continues a conversation, only those after the last answer."""
    roles = [message.get("role") for message in messages]
    if continues and "assistant" in roles:
        messages = messages[len(roles) - roles[::-1].index("assistant") :]
    if not messages:
        raise Invalid("there is no message after the last answer", hint="end the messages with one of the user")
    if len(messages) == 1 and messages[0].get("role") == "user":
        return _text(messages[0])
    return "\n\n".join(f"{message.get('role')}: {_text(message)}" for message in messages)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    if not parts or any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
        raise Invalid("a message has content other than text", hint="agents are sent text only")
    return "".join(str(part["text"]) for part in parts)


def _pause_s(until: float) -> float:
    return min(ASK_AGAIN_S, until - time.monotonic())


def _is_abandoned(error: BaseException) -> bool:
    """Whether the completion may still run, and nobody waits for it."""
    return isinstance(error, TimedOut) or not isinstance(error, KsiError)


def _late(completion_id: str, limit_s: float) -> TimedOut:
    return TimedOut(f"the completion {completion_id} did not end within {limit_s:g} s", hint="try a longer timeout")


class _NotDone(Unavailable):
    """The completion ended without an answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def _done(shown: dict[str, Any]) -> dict[str, Any]:
    if shown["state"] == "done":
        return shown
    error = shown.get("error") or {}
    hint = f" ({error['hint']})" if error.get("hint") else ""
    message = f"the completion {shown['completion_id']} was {shown['state']}: {error.get('message', '')}{hint}"
    raise _NotDone(message, STATUS.get(error.get("code", ""), 500))


def _handler(hub: HubModel) -> Any:
    """What LiteLLM calls, with all arguments by name."""
    import litellm
    from litellm.llms.custom_llm import CustomLLMError

    def filled(response: Any, model: str, shown: Mapping[str, Any]) -> Any:
        used = shown.get("usage") or {}
        read, written = used.get("cache_read_tokens", 0), used.get("cache_creation_tokens", 0)
        prompt_tokens, answer_tokens = used.get("input_tokens", 0) + read + written, used.get("output_tokens", 0)
        response.id = shown["completion_id"]
        response.model = f"{PROVIDER}/{model}"
        response.choices[0].message.content = shown["text"]
        response.usage = litellm.Usage(
            prompt_tokens=prompt_tokens, completion_tokens=answer_tokens, total_tokens=prompt_tokens + answer_tokens
        )
        return response

    def refused(error: KsiError) -> Exception:
        status = error.status if isinstance(error, _NotDone) else STATUS_OF_ERROR.get(error.code, 500)
        hint = f"; {error.hint}" if error.hint else ""
        refusal: Exception = CustomLLMError(status_code=status, message=f"{error}{hint}")
        return refusal

    def limit(timeout: object) -> float:
        return float(timeout) if isinstance(timeout, int | float) and timeout > 0 else DEFAULT_LIMIT_S

    class Handler(litellm.CustomLLM):  # type: ignore[misc]  # LiteLLM is not installed where types are checked
        def completion(
            self, *, model: str, messages: list[Any], model_response: Any, optional_params: dict[str, Any],
            timeout: object = None, **_: Any,
        ) -> Any:  # fmt: skip
            try:
                return filled(model_response, model, hub.answer(model, messages, optional_params, limit(timeout)))
            except KsiError as error:
                raise refused(error) from error

        async def acompletion(
            self, *, model: str, messages: list[Any], model_response: Any, optional_params: dict[str, Any],
            timeout: object = None, **_: Any,
        ) -> Any:  # fmt: skip
            try:
                shown = await hub.answer_async(model, messages, optional_params, limit(timeout))
            except KsiError as error:
                raise refused(error) from error
            return filled(model_response, model, shown)

    return Handler()
