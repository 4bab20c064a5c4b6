"""The providers by name, and which of their programs are installed."""

from pathlib import Path

import pytest

from ksi_daemon.completion.providers import PROVIDERS, Installed, find_provider, installed
from ksi_daemon.errors import Invalid
from tests.completion.jobs import program


def test_every_provider_is_found_by_its_name_and_offers_options_that_it_has() -> None:
    assert list(PROVIDERS) == ["command", "claude", "codex"]
    for name, provider in PROVIDERS.items():
        assert find_provider(name).name == name
        assert provider.chosen_by_agents <= set(provider.options.model_fields)
        assert "program" not in provider.chosen_by_agents
        assert all(field.description for field in provider.options.model_fields.values())


def test_an_unknown_provider_is_refused_with_the_nearest_one_and_all_names() -> None:
    with pytest.raises(Invalid, match="did you mean 'claude'") as caught:
        find_provider("cluade")
    assert caught.value.hint == "the providers are command, claude, codex"


def test_programs_that_are_missing_come_with_how_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    claude = program(tmp_path, "claude")
    assert installed()[1:] == [
        Installed(name="claude", program=claude),
        Installed(name="codex", hint="npm install -g @openai/codex"),
    ]
    assert installed()[0].program is None
