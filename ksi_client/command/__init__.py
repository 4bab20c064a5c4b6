"""The `ksi` command. This file only starts it; `entry.py` runs a verb and turns every failure into an exit code."""


def main() -> int:
    """Run the command line and return its exit code. Never raises, never shows a traceback."""
    from ksi_client.command.entry import run

    return run()
