"""Agents as models of LiteLLM. The library is not a dependency: a module of its documented shape stands in for it."""

import asyncio
import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ksi_client import litellm_provider
from ksi_client.errors import Invalid
from ksi_client.litellm_provider import prompt_for
from tests.client.fake_daemon import FakeDaemon, Silence, fail
from tests.client.test_lightness import loaded_by

USAGE = {"input_tokens": 22, "cache_creation_tokens": 2000, "cache_read_tokens": 100, "output_tokens": 14}
HELLO = [{"role": "user", "content": "hello"}]


class CustomLLMError(Exception):
    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code


class FakeLiteLLM(ModuleType):
    """As much of LiteLLM as a custom provider meets: the map of providers, and how it calls a handler."""

    def __init__(self) -> None:
        super().__init__("litellm")
        self.custom_provider_map: list[dict[str, Any]] = [{"provider": "other", "custom_handler": None}]
        self.CustomLLM = type("CustomLLM", (), {})
        self.Usage = SimpleNamespace

    def completion(self, model: str, messages: list[Any], **options: Any) -> Any:
        return self._call("completion", model, messages, options)

    async def acompletion(self, model: str, messages: list[Any], **options: Any) -> Any:
        return await self._call("acompletion", model, messages, options)

    def _call(self, method: str, model: str, messages: list[Any], options: dict[str, Any]) -> Any:
        provider, model = model.split("/", 1)
        (entry,) = (entry for entry in self.custom_provider_map if entry["provider"] == provider)
        answer = SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=None))])
        timeout = options.pop("timeout", 600.0)
        return getattr(entry["custom_handler"], method)(
            model=model, messages=messages, headers={}, model_response=answer, print_verbose=print, api_key=None,
            api_base=None, acompletion=method == "acompletion", logging_obj=None, optional_params=options,
            litellm_params={}, logger_fn=None, timeout=timeout, custom_prompt_dict={}, client=None, encoding=None,
        )  # fmt: skip


@pytest.fixture
def litellm(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLiteLLM]:
    fake, errors = FakeLiteLLM(), ModuleType("litellm.llms.custom_llm")
    errors.__dict__["CustomLLMError"] = CustomLLMError
    monkeypatch.setitem(sys.modules, "litellm", fake)
    monkeypatch.setitem(sys.modules, "litellm.llms", ModuleType("litellm.llms"))
    monkeypatch.setitem(sys.modules, "litellm.llms.custom_llm", errors)
    litellm_provider.register(daemon.path)
    daemon.answers["completion:async"] = lambda data: {"completion_id": "k1", "conversation_id": "c1", "data": data}
    states = iter(["running", "done"])
    daemon.answers["completion:wait"] = lambda _: shown(next(states))
    daemon.answers["completion:cancel"] = lambda _: {}
    return fake


def shown(state: str, **more: Any) -> dict[str, Any]:
    return {"completion_id": "k1", "state": state, "text": "It says hello.", "usage": USAGE, "error": None, **more}


def asked(daemon: FakeDaemon, event: str) -> list[dict[str, Any]]:
    return [request["data"] for request in daemon.requests if request["event"] == event]


def test_importing_it_does_not_import_litellm() -> None:
    assert "litellm" not in loaded_by("import ksi_client.litellm_provider")


def test_an_agent_answers_as_a_model(daemon: FakeDaemon, litellm: FakeLiteLLM) -> None:
    answer = litellm.completion("claude-cli/sonnet", HELLO, agent_id="ada", conversation_id="c1", timeout=90)
    assert asked(daemon, "completion:async") == [
        {"agent_id": "ada", "prompt": "hello", "timeout_s": 90.0, "conversation_id": "c1", "model": "sonnet"}
    ]
    assert answer.choices[0].message.content == "It says hello."
    assert (answer.id, answer.model) == ("k1", "claude-cli/sonnet")
    assert vars(answer.usage) == {"prompt_tokens": 2122, "completion_tokens": 14, "total_tokens": 2136}
    assert asked(daemon, "completion:cancel") == []


async def test_it_answers_without_blocking_too(daemon: FakeDaemon, litellm: FakeLiteLLM) -> None:
    answer = await litellm.acompletion("claude-cli/default", HELLO, agent_id="ada")
    assert answer.choices[0].message.content == "It says hello."
    assert asked(daemon, "completion:async") == [{"agent_id": "ada", "prompt": "hello", "timeout_s": 600.0}]


def test_registering_again_replaces_it_and_leaves_others(litellm: FakeLiteLLM) -> None:
    litellm_provider.register()
    assert [entry["provider"] for entry in litellm.custom_provider_map] == ["other", "claude-cli"]


def test_what_the_daemon_refuses_is_an_error_with_its_status(daemon: FakeDaemon, litellm: FakeLiteLLM) -> None:
    daemon.answers["completion:async"] = fail(code="not_found", message="there is no agent 'ada'", hint="ksi agents ls")
    with pytest.raises(CustomLLMError, match="there is no agent 'ada'; ksi agents ls") as caught:
        litellm.completion("claude-cli/sonnet", HELLO, agent_id="ada")
    assert caught.value.status_code == 404
    with pytest.raises(CustomLLMError, match="agent_id is missing") as caught:
        litellm.completion("claude-cli/sonnet", HELLO)
    assert caught.value.status_code == 400


def test_a_completion_that_failed_is_an_error(daemon: FakeDaemon, litellm: FakeLiteLLM) -> None:
    error = {"code": "not_logged_in", "message": "Claude Code may not use the model", "hint": "log in"}
    daemon.answers["completion:wait"] = lambda _: shown("failed", error=error)
    with pytest.raises(CustomLLMError, match=r"k1 was failed: Claude Code may not use the model \(log in\)") as caught:
        litellm.completion("claude-cli/sonnet", HELLO, agent_id="ada")
    assert caught.value.status_code == 401


def test_a_completion_that_takes_too_long_is_cancelled(daemon: FakeDaemon, litellm: FakeLiteLLM) -> None:
    def wait(data: dict[str, Any]) -> dict[str, Any]:
        time.sleep(data["timeout_s"])
        return shown("running")

    daemon.answers["completion:wait"] = wait
    with pytest.raises(CustomLLMError, match="did not end within") as caught:
        litellm.completion("claude-cli/sonnet", HELLO, agent_id="ada", timeout=0.05)
    assert caught.value.status_code == 408
    assert asked(daemon, "completion:cancel") == [{"completion_id": "k1"}]


async def test_a_completion_that_is_not_awaited_any_more_is_cancelled(daemon: FakeDaemon, litellm: FakeLiteLLM) -> None:
    waiting = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(_: dict[str, Any]) -> Any:
        loop.call_soon_threadsafe(waiting.set)
        raise Silence

    daemon.answers["completion:wait"] = wait
    task = asyncio.create_task(litellm.acompletion("claude-cli/sonnet", HELLO, agent_id="ada"))
    async with asyncio.timeout(10):
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asked(daemon, "completion:cancel") == [{"completion_id": "k1"}]


def test_messages_become_one_prompt() -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go on."}
    parts = {"role": "user", "content": [{"type": "text", "text": "Go "}, {"type": "text", "text": "on."}]}
    answer = {"role": "assistant", "content": "Yes."}
    assert prompt_for([parts], continues=False) == "Go on."
    assert prompt_for([system, user, answer, user], continues=False) == (
        "system: Be brief.\n\nuser: Go on.\n\nassistant: Yes.\n\nuser: Go on."
    )
    assert prompt_for([system, user, answer, parts], continues=True) == "Go on."
    with pytest.raises(Invalid, match="after the last answer"):
        prompt_for([user, answer], continues=True)
    with pytest.raises(Invalid, match="other than text"):
        prompt_for([{"role": "user", "content": [{"type": "image_url"}]}], continues=False)
