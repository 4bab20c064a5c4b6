"""Runs one command line: parses it, runs the verb, and turns every failure into one short message and an exit code."""

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
    """Run the command line; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a locale without UTF-8 must not cause errors
    join_bash_words(os.environ)
    screen, code = Screen(), OK
    try:
        code = _run_verb(screen)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does: not an error
        _discard_output()
    except OSError as error:
        _discard_output()
        if code == OK:
            screen.fault(Fault(f"the output could not be written: {error.strerror}", hint="is the disk full?"))
            code = FAILED
    return code


def _run_verb(screen: Screen) -> int:
    try:
        return _exit_code(typer.main.get_command(root)(prog_name="ksi", standalone_mode=False, obj=screen))
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as exit_:
        if isinstance(exit_.__context__, BrokenPipeError):
            raise exit_.__context__ from None  # typer would exit with 1; see `run`
        return _exit_code(exit_.code)
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
        hint = "run it again with KSI_DEBUG=1 for the traceback"
        screen.fault(Fault(f"unexpected {type(error).__name__}: {error}", hint=hint))
        return FAILED


def _exit_code(result: Any) -> int:
    return result if isinstance(result, int) else 0


def _explain_usage(error: typer.TyperException) -> None:
    context: Any = getattr(error, "ctx", None)
    text = visible(error.format_message(), multiline=True)
    if text.startswith("Usage:"):  # a group without a verb prints its help
        print(text, file=sys.stderr)
        return
    print(f"ksi: {text}", file=sys.stderr)
    if context is not None:
        print(f"  next: {visible(context.command_path)} --help", file=sys.stderr)


def _discard_output() -> None:
    """Redirect stdout to /dev/null: the interpreter would otherwise try to flush the buffer at exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
