"""What a plugin or a setting gets wrong is named, and does not make answers huge for everybody."""

from tests.live.daemon_process import Daemon


def test_a_huge_docstring_and_a_missing_plugin_folder_are_named(daemon: Daemon) -> None:
    """J06: the plugin is set aside, system:discover stays small, and the missing entry of plugin_dirs is an alarm."""
    daemon.plugin(
        "wordy",
        """
@plugin.handles("wordy:work")
async def work(ctx: Context, params: Nothing) -> Done:
    \"\"\"Work. %s\"\"\"
    return Done()
"""
        % ("x" * 500_000),
    )
    daemon.plugin(
        "described",
        """
class Words(Params):
    text: str = Field(description="x" * 500_000)

@plugin.handles("described:work")
async def work(ctx: Context, params: Words) -> Done:
    \"\"\"Work.\"\"\"
    return Done()
""",
    )
    missing = daemon.folder / "missing"
    daemon.start(KSI_PLUGIN_DIRS=f"{daemon.plugins},{missing}")
    reasons = {one["name"]: one.get("reason") for one in daemon.call("plugin:list")["plugins"]}
    assert "500,006 characters" in reasons["wordy"]
    assert "larger than" in reasons["described"]
    assert len(str(daemon.call("system:discover", {"detail": True}))) < 400_000
    assert any(str(missing) in alarm for alarm in daemon.call("system:health")["alarms"])
