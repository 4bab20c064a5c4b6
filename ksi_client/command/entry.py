"""Runs one command line: parses it, runs the verb, and ends every failure as one short message and an exit code."""

import os
import sys
from typing import Any

import typer

from ksi_client.command.app import root
from ksi_client.command.complete import join_bash_words
from ksi_client.command.fault import FAILED, INTERRUPTED, OK, Fault
from ksi_client.command.screen import Screen
from ksi_client.errors import KsiError
from ksi_client.terminal import visible


def run() -> int:
    """The whole life of one `ksi` process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a narrow locale shortens nothing and breaks nothing
    join_bash_words(os.environ)
    screen, code = Screen(), OK
    try:
        code = _run_verb(screen)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone, as `head` does: the work is done
        _discard_output()
    except OSError as error:
        _discard_output()
        if code == OK:
            screen.fault(
                Fault(f"the output could not be written: {error.strerror}", hint="was it sent to a full disk?")
            )
            code = FAILED
    return code


def _run_verb(screen: Screen) -> int:
    try:
        return _exit_code(typer.main.get_command(root)(prog_name="ksi", standalone_mode=False, obj=screen))
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None  # typer would have us end with 1; see `run`
        return _exit_code(end.code)
    except typer.TyperException as error:
        _explain_usage(error)
        return error.exit_code
    except KsiError as error:
        screen.error(error)
        return error.exit_code
    except Fault as fault:
        screen.fault(fault)
        return fault.exit_code
    except Exception as error:
        if os.environ.get("KSI_DEBUG"):
            raise
        hint = "run it again with KSI_DEBUG=1 to see where"
        screen.fault(Fault(f"unexpected {type(error).__name__}: {error}", hint=hint))
        return FAILED


def _exit_code(result: Any) -> int:
    return result if isinstance(result, int) else 0


def _explain_usage(error: typer.TyperException) -> None:
    context: Any = getattr(error, "ctx", None)
    text = visible(error.format_message(), multiline=True)
    if text.startswith("Usage:"):  # a group without a verb: its help is the answer
        print(text, file=sys.stderr)
        return
    print(f"ksi: {text}", file=sys.stderr)
    if context is not None:
        print(f"  next: {visible(context.command_path)} --help", file=sys.stderr)


def _discard_output() -> None:
    """What is still buffered cannot be written; without this the interpreter would try again, and fail, as it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
