"""Validates paths from callers: `sanitize_path` checks that a path names something beneath a folder.

It checks the text and the current files. To open the file safely, even if files change meanwhile, use `beneath`.
"""

import os
import re
import stat
import unicodedata
from pathlib import Path, PurePosixPath

from ksi_daemon.hygiene.verdict import Sanitized, result_of

PATH_LIMIT_BYTES = 4096
NAME_LIMIT_BYTES = 255
ENCODED = re.compile(r"%(?:2e|2f|5c|00|25)", re.IGNORECASE)
DRIVE = re.compile(r"[A-Za-z]:(?:$|[/\\])|[A-Za-z][A-Za-z0-9+.-]{0,30}://")
DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE | re.DOTALL)
SHELL = ("${", "$(", "`")
# Look like a dot or a slash to a reader (or another system), but are not.
LOOK_ALIKES = frozenset(
    "\u2044\u2215\u2216\u29f5\u29f8\u29f9\u3002\uff61\u0589\u06d4\u0701\u0702\ua4f8\ufe68\u2571\u2572"
)


def sanitize_path(path: str, base_dir: str | Path, *, allow_absolute: bool = False) -> Sanitized:
    """The path relative to `base_dir`, if it names something beneath it. Nothing is trimmed, decoded or folded.

    Only `.`, doubled slashes and a slash at the end are dropped. An absolute path, where allowed, must lead into `base_dir` too.
    """
    problems = _bad_text(path)
    if problems:
        return result_of("", problems)
    base = PurePosixPath(os.path.abspath(base_dir))
    inner = path
    if path.startswith("/"):
        if not allow_absolute:
            return result_of("", {"absolute_path": "an absolute path is not allowed: give it relative to the folder"})
        if ".." in path.split("/"):
            return result_of("", {"path_traversal": "the path leaves the folder with '..'"})
        if not PurePosixPath(path).is_relative_to(base):
            return result_of("", {"outside": "the path does not lead into the folder"})
        inner = str(PurePosixPath(path).relative_to(base))
    names = [name for name in inner.split("/") if name not in ("", ".")]
    for name in names:
        problems |= _bad_name(name)
    if names and names[0].startswith("~"):
        problems["home_folder"] = "'~' stands for a home folder"
    if not problems and (link := _symbolic_link(base, names)):
        problems["symbolic_link"] = link
    return result_of("/".join(names) or ".", problems)


def _bad_text(path: str) -> dict[str, str]:
    problems: dict[str, str] = {}
    if not path:
        problems["empty"] = "the path is empty"
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        problems["not_unicode"] = "the path has half of a surrogate pair in it"
        size = len(path)
    if size > PATH_LIMIT_BYTES:
        return {"too_long": f"the path has {size:,} bytes, more than {PATH_LIMIT_BYTES:,}"}
    if "\0" in path:
        problems["nul"] = "the path has a NUL character in it"
    if any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in path.replace("\0", "")):
        problems["invisible"] = "the path has control characters or invisible ones in it"
    if any(_is_look_alike(char) for char in path):
        problems["look_alike"] = "the path has characters that look like a dot or a slash but are not"
    if "\\" in path:
        problems["backslash"] = "the path has a backslash in it; folders are separated by '/'"
    if ENCODED.search(path):
        problems["encoded"] = "the path has percent-encoded dots or slashes in it"
    if any(mark in path for mark in SHELL):
        problems["shell"] = "the path has marks in it that a shell would expand"
    if DRIVE.match(path):
        problems["drive"] = "the path begins with a drive or a scheme"
    return problems


def _is_look_alike(char: str) -> bool:
    if char.isascii():
        return False
    return char in LOOK_ALIKES or any(mark in unicodedata.normalize("NFKC", char) for mark in "./\\~")


def _bad_name(name: str) -> dict[str, str]:
    if name == "..":
        return {"path_traversal": "the path leaves the folder with '..'"}
    problems: dict[str, str] = {}
    if len(name.encode("utf-8")) > NAME_LIMIT_BYTES:
        problems["name_too_long"] = f"a part of the path is longer than {NAME_LIMIT_BYTES} bytes"
    if name[0].isspace() or name[-1].isspace() or name[-1] == ".":
        problems["edge"] = "a part of the path begins or ends with a blank, or ends with a dot"
    if name[0] in "\"'" or name[-1] in "\"'":
        problems["quote"] = "a part of the path begins or ends with a quotation mark"
    if DEVICE.fullmatch(name):
        problems["device"] = "a part of the path is the name of a device on some systems"
    return problems


def _symbolic_link(base: PurePosixPath, names: list[str]) -> str | None:
    """A symbolic link in the existing part of the path."""
    current = str(base)
    for name in names:
        current = f"{current}/{name}"
        try:
            mode = os.lstat(current).st_mode
        except OSError:
            return None
        if stat.S_ISLNK(mode):
            return "the path goes through a symbolic link"
    return None
