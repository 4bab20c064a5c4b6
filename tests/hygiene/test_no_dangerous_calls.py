"""Y03: nothing of ours starts a shell, evaluates text, unpickles, loads YAML with tags, or makes temporary names."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.cases import case

ROOT = Path(__file__).parents[2]
FOLDERS = ("ksi_daemon", "ksi_client", "plugins", "scripts")

CALLS = {
    "os.system", "os.popen", "os.popen2", "os.popen3", "os.popen4", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "tempfile.mktemp", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all",
    "eval", "exec", "builtins.eval", "builtins.exec",
}  # fmt: skip
CALLS |= {f"os.spawn{kind}{more}{path}" for kind in "lv" for more in ("", "e") for path in ("", "p")}
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "shelve",
    "marshal",
    "jsonpickle",
    "commands",
    "popen2",
}
SAFE_LOADERS = {"SafeLoader", "CSafeLoader"}


def python_files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (path.suffix == ".py" or (folder == "scripts" and is_python_script(path))):
                yield path


def is_python_script(path: Path) -> bool:
    with path.open("rb") as script:
        first = script.readline(200)
    return first.startswith(b"#!") and b"python" in first


def dangers(source: str) -> list[str]:
    """Each dangerous thing in a module, with its line. Names are followed through imports, also renamed ones."""
    tree = ast.parse(source)
    meaning: dict[str, str] = {}
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                meaning[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                if alias.name.partition(".")[0] in MODULES:
                    found.append((node.lineno, f"import {alias.name}"))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            meaning |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            if node.module.partition(".")[0] in MODULES:
                found.append((node.lineno, f"from {node.module} import"))
            found += [(node.lineno, f"{node.module}.*") for alias in node.names if alias.name == "*"]
    for node in ast.walk(tree):
        name = full_name(node, meaning)
        if name in CALLS:
            found.append((getattr(node, "lineno", 0), str(name)))
        if isinstance(node, ast.Call):
            found += [(node.lineno, what) for what in dangerous_arguments(node, meaning)]
    return [f"line {line}: {what}" for line, what in sorted(set(found))]


def full_name(node: ast.AST, meaning: dict[str, str]) -> str | None:
    """`run` -> `subprocess.run`, however it was imported."""
    if isinstance(node, ast.Name):
        return meaning.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = full_name(node.value, meaning)
        return owner and f"{owner}.{node.attr}"
    return None


def dangerous_arguments(call: ast.Call, meaning: dict[str, str]) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False):
            yield "shell=True"
    if full_name(call.func, meaning) == "yaml.load":
        loaders = [keyword.value for keyword in call.keywords if keyword.arg == "Loader"] + call.args[1:2]
        names = {(full_name(loader, meaning) or "").rpartition(".")[2] for loader in loaders}
        if not names or not names <= SAFE_LOADERS:
            yield "yaml.load without a safe loader"


def test_none_of_our_code_calls_anything_dangerous() -> None:
    """Y03."""
    files = list(python_files())
    assert len(files) > 40
    found = [
        f"{path.relative_to(ROOT)}: {what}" for path in files for what in dangers(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_check_finds_each_of_them_also_by_another_name() -> None:
    """Y03."""
    cases = [
        "import subprocess\nsubprocess.run('x', shell=True)",
        "from subprocess import run as go\ngo('x', shell=maybe)",
        "import os\nos.system('x')",
        "import os as o\no.popen('x')",
        "from os import system\nsystem('x')",
        "from os import *",
        "import os\nrun = os.system",
        "eval('x')",
        "exec('x')",
        "import builtins\nbuiltins.eval('x')",
        "f = eval",
        "import pickle",
        "from pickle import loads",
        "import dill.source",
        "import shelve",
        "import yaml\nyaml.load(x)",
        "import yaml\nyaml.load(x, Loader=yaml.Loader)",
        "import yaml\nyaml.load(x, yaml.FullLoader)",
        "import yaml\nyaml.unsafe_load(x)",
        "from tempfile import mktemp\nmktemp()",
        "import asyncio\nasync def f():\n    await asyncio.create_subprocess_shell('x')",
        "import subprocess\nsubprocess.getoutput('x')",
    ]
    for source in cases:
        with case(source):
            assert dangers(source)


def test_the_check_leaves_harmless_code_alone() -> None:
    cases = [
        "import subprocess\nsubprocess.run(['x'], shell=False)",
        "import yaml\nyaml.safe_load(x)\nyaml.load(x, Loader=yaml.SafeLoader)\nyaml.load(x, yaml.CSafeLoader)",
        "import tempfile\ntempfile.mkstemp()",
        "import re\nre.compile('eval')",
        "'''os.system, eval and pickle in words'''",
        "class A:\n    def evaluate(self): return self.eval",
    ]
    for source in cases:
        with case(source):
            assert dangers(source) == []
