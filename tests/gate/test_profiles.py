"""The four shipped profiles, the operator's own, and every way in which a profile file can be wrong."""

from pathlib import Path

import pytest

from ksi_daemon.core import CORE
from ksi_daemon.errors import BadSettings, Invalid
from ksi_daemon.gate.grants import Need, RuleSet
from ksi_daemon.gate.limits import Rate
from ksi_daemon.gate.profiles import Profile, find_profile, read_profiles

CORE_NAMESPACES = frozenset(plugin.name for plugin, _ in CORE)
SHIPPED = read_profiles(core=CORE_NAMESPACES)
OPENED = {"system", "state", "message"}  # the core's namespaces that standard agents may use, system only in part


def may(profile: str, event: str, need: Need = "read", profiles: dict[str, Profile] = SHIPPED) -> bool:
    return RuleSet(profiles[profile].rules).decide(f"events/{event}", need, 0).allowed


def holds(profile: str, resource: str) -> bool:
    return RuleSet(SHIPPED[profile].rules).decide(resource, "execute", 0).allowed


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_there_are_four_and_each_has_a_description() -> None:
    assert list(SHIPPED) == ["researcher", "restricted", "standard", "trusted"]
    assert all(profile.description for profile in SHIPPED.values())


@pytest.mark.parametrize("profile", list(SHIPPED))
def test_echo_health_help_and_discover_are_in_every_profile(profile: str) -> None:
    for verb in ("echo", "health", "help", "discover", "validate"):
        assert may(profile, f"system:{verb}")


def test_restricted_has_nothing_else() -> None:
    for event in ("system:status", "system:shutdown", "state:get", "message:publish", "notes:list", "plugin:list"):
        assert not may("restricted", event)


def test_standard_keeps_state_sends_messages_and_reads_through_plugins() -> None:
    assert may("standard", "state:set", "write")
    assert may("standard", "message:publish", "write")
    assert may("standard", "notes:search")
    assert not may("standard", "notes:add", "write")
    assert not may("standard", "system:status")
    assert not may("standard", "system:shutdown", "write")
    assert not may("standard", "plugin:list")


def test_researcher_writes_through_plugins_and_reads_knowledge() -> None:
    assert may("researcher", "notes:add", "write")
    assert holds("researcher", "knowledge/reader")
    assert not holds("researcher", "knowledge/maintainer")
    assert not holds("researcher", "raw/events")
    assert not may("researcher", "system:shutdown", "write")


def test_every_namespace_of_the_daemon_is_closed_until_a_profile_names_it() -> None:
    """A namespace that is added later is closed without anybody writing so."""
    profiles = read_profiles(core=CORE_NAMESPACES | {"brandnew"})
    for profile in ("standard", "researcher"):
        for namespace in CORE_NAMESPACES | {"brandnew"} - OPENED:
            assert not may(profile, f"{namespace}:get_anything", profiles=profiles) or namespace in OPENED
            assert not may(profile, f"{namespace}:set_anything", "write", profiles) or namespace in OPENED
    assert may("trusted", "brandnew:set_anything", "write", profiles)


def test_trusted_has_every_event_every_scope_and_no_rate_limit() -> None:
    assert may("trusted", "agent:spawn", "write")
    for resource in ("knowledge/reader", "knowledge/maintainer", "raw/events"):
        assert holds("trusted", resource)
    for scope in ("read", "write", "execute", "network", "admin"):
        assert holds("trusted", f"librarian/{scope}")
    assert SHIPPED["trusted"].rate.calls_per_minute is None


def test_the_others_have_a_hundred_a_minute_and_bursts_of_twenty() -> None:
    """L091."""
    for name in ("restricted", "standard", "researcher"):
        rate = SHIPPED[name].rate
        assert (rate.calls_per_minute, rate.burst) == (100, 20)


def test_each_rule_says_which_profile_it_came_from() -> None:
    sources = {rule.source for rule in SHIPPED["researcher"].rules}
    assert sources == {
        "profile researcher",
        "profile standard",
        "profile restricted",
        "profile researcher: events of the daemon are opened by name only",
    }


def test_a_file_of_the_same_name_takes_the_place_of_a_shipped_profile_also_where_it_is_included(tmp_path: Path) -> None:
    write(
        tmp_path,
        "standard.toml",
        'name = "standard"\ndescription = "Ours."\ngrants = [{resource = "events/state:get", access = "read"}]\n',
    )
    profiles = read_profiles(tmp_path, core=CORE_NAMESPACES)
    assert profiles["standard"].overridden
    assert not profiles["researcher"].overridden
    assert not may("standard", "notes:search", profiles=profiles)
    assert not may("researcher", "state:set", "write", profiles=profiles)
    assert profiles["standard"].rate == Rate(100, 20, 8)


def test_a_file_of_another_name_is_a_new_profile(tmp_path: Path) -> None:
    write(
        tmp_path,
        "night-shift.toml",
        'name = "night-shift"\ndescription = "At night."\nincludes = ["standard"]\n'
        'grants = [{resource = "events/notes:*", access = "write"}]\n'
        '[rate]\ncalls_per_minute = "unlimited"\nconcurrent_calls = "unlimited"\n',
    )
    write(tmp_path, "README.md", "not a profile")
    write(tmp_path, ".standard.toml", "an editor's copy")
    profile = read_profiles(tmp_path)["night-shift"]
    assert profile.rate == Rate(None, 20, None)
    assert profile.as_dict()["grants"][0] == {"resource": "events/notes:*", "access": "write"}
    assert (profile.as_dict()["includes"], profile.overridden) == (["standard"], False)


def test_a_folder_that_is_not_there_is_no_problem(tmp_path: Path) -> None:
    assert read_profiles(tmp_path / "profiles", core=CORE_NAMESPACES) == SHIPPED


GOOD = 'name = "mine"\ndescription = "x"\ngrants = []\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ", "mine.toml is not valid TOML"),
        ("\udcff", "mine.toml is not valid TOML"),
        (GOOD + "grnats = []", "mine.toml: unknown key 'grnats'; did you mean 'grants'?"),
        (GOOD + "[rate]\nbrust = 5", "mine.toml: unknown key 'rate.brust'; did you mean 'burst'?"),
        (GOOD + "[rate]\nburst = 0", "rate.burst: Input should be greater than or equal to 1, not '0'"),
        (GOOD + "[rate]\ncalls_per_minute = 'lots'", "rate.calls_per_minute"),
        ('name = "mine"\ngrants = []', "the key 'description' is missing"),
        ('name = "mine"\ndescription = "x"', "the key 'grants' is missing"),
        ('name = "yours"\ndescription = "x"\ngrants = []', "name is 'yours', but the file is called 'mine'"),
        (GOOD + 'includes = ["standart"]', "there is no profile 'standart'; did you mean 'standard'?"),
        (GOOD + 'includes = ["mine"]', "mine.toml: it includes itself, by way of mine"),
        (
            GOOD.replace("[]", '[{resource = "events/x:*", access = "wirte"}]'),
            "grants.access (number 1): 'wirte' is not a valid access; did you mean 'write'?",
        ),
        (GOOD.replace("[]", '[{resource = "events/x:*"}]'), "the key 'grants.access (number 1)' is missing"),
        (
            GOOD.replace("[]", '[{resource = "a/b", access = "read", until = 5}]'),
            "unknown key 'grants.until (number 1)'",
        ),
        (
            GOOD.replace("[]", '[{resource = "tables/a", access = "read"}, {resource = "events/Notes:*", access = "read"}]'),
            "grants, number 2: 'events/Notes:*' is not a valid resource: event names are lower-case",
        ),
        ("x" * 200_000, "mine.toml is larger than 100,000 bytes"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_name_the_key_and_the_nearest_match(
    tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "mine.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadSettings) as refused:
        read_profiles(tmp_path)
    assert problem in str(refused.value)


def test_every_problem_of_every_file_is_named_at_once(tmp_path: Path) -> None:
    write(tmp_path, "One.toml", GOOD)
    write(tmp_path, "two.toml", 'name = "two"\ngrants = [{resource = "a b", access = "red"}]\nmore = 1')
    write(tmp_path, "three.yaml", "name: three")
    (tmp_path / "four.toml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadSettings) as refused:
        read_profiles(tmp_path)
    said = str(refused.value)
    assert "One.toml: a profile's name is lower-case letters" in said
    for problem in ("'description' is missing", "unknown key 'more'", "'red' is not a valid access", "it has a blank"):
        assert f"two.toml: {'the key ' if 'missing' in problem else ''}" in said
        assert problem in said
    assert "three.yaml: profiles are .toml files" in said
    assert "four.toml cannot be read: No such file or directory" in said


def test_profiles_that_include_each_other_are_refused(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        write(tmp_path, f"{name}.toml", f'name = "{name}"\ndescription = "x"\ngrants = []\nincludes = ["{other}"]')
    with pytest.raises(BadSettings, match=r"a\.toml: it includes itself, by way of b"):
        read_profiles(tmp_path)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cannot be read: Not a directory"):
        read_profiles(write(tmp_path, "file", ""))


def test_asking_for_a_profile_that_is_not_there_names_the_nearest() -> None:
    assert find_profile(SHIPPED, "trusted").name == "trusted"
    with pytest.raises(Invalid, match="there is no profile 'standrd'; did you mean 'standard'"):
        find_profile(SHIPPED, "standrd")
