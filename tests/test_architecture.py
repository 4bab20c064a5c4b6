"""The house's rules that can be read off the source: who imports whom, and what nobody may do."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DAEMON = ROOT / "ksi_daemon"

# Lowest first. A module imports from its own floor or below. DESIGN section 4:
# daemon > web, operator_socket, core > router, loader > gate, audit, store, bus > plugin > sqlite > errors, config
FLOORS: list[set[str]] = [
    {
        "ksi_daemon",
        "errors",
        "access",
        "identifiers",
        "principal",
        "redaction",
        "config",
        "plugin_import",
        "database_file",
        "var_dir",
    },
    {"notice", "sqlite", "worker", "handler", "deadlines", "hygiene"},
    {"plugin", "journal", "watchdog"},
    {"log", "bus", "store", "discovery", "gate", "audit"},
    {"recorder", "router", "running_plugin", "loader", "control", "inquiry"},
    {"core", "web", "operator_socket", "operator_request", "process"},
    {"daemon"},
    {"__main__", "testing"},
]


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or "plugins" in path.parts, f"{path}:{node.lineno} imports relatively"
            module = node.module or ""
            yield module, node.lineno
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno


def part(module: str) -> str:
    """`ksi_daemon.store.state` -> `store`; the package itself -> `ksi_daemon`."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else pieces[0]


def floor(name: str) -> int:
    for number, names in enumerate(FLOORS):
        if name in names:
            return number
    raise AssertionError(f"{name} has no floor in the house: give it one in FLOORS")


def parts_of_daemon() -> set[str]:
    return {path.relative_to(DAEMON).parts[0].removesuffix(".py") for path in modules(DAEMON)} - {
        "__init__",
        "shipped_plugins",
    }


def own(path: Path) -> str:
    name = path.relative_to(DAEMON).parts[0].removesuffix(".py")
    return "ksi_daemon" if name == "__init__" else name


@pytest.mark.parametrize("path", modules(DAEMON), ids=lambda path: str(path.relative_to(DAEMON)))
def test_imports_point_down_only(path: Path) -> None:
    """DESIGN section 4."""
    known = parts_of_daemon()
    for module, line in imports(path):
        if module.startswith("ksi_daemon.") and part(module) in known:
            assert floor(part(module)) <= floor(own(path)), f"{path}:{line} imports {module} from a floor above"


def test_every_part_of_the_daemon_has_its_floor_and_no_floor_is_a_ghost() -> None:
    assert parts_of_daemon() | {"ksi_daemon"} == set().union(*FLOORS)


def test_no_part_of_the_daemon_imports_itself_in_a_circle() -> None:
    """Also between modules of one floor."""
    known = parts_of_daemon()
    graph: dict[str, set[str]] = {}
    for path in modules(DAEMON):
        wanted = {
            part(module) for module, _ in imports(path) if module.startswith("ksi_daemon.") and part(module) in known
        }
        graph.setdefault(own(path), set()).update(wanted - {own(path)})
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        if name not in done:
            for following in graph.get(name, set()):
                walk(following, (*way, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def test_the_client_imports_nothing_of_the_daemon() -> None:
    """K046."""
    for path in modules(ROOT / "ksi_client"):
        for module, line in imports(path):
            assert module.split(".")[0] not in ("ksi_daemon", "ksi_plugins", "plugins"), f"{path}:{line}"


def test_the_daemon_imports_nothing_of_the_client() -> None:
    for path in modules(DAEMON):
        for module, line in imports(path):
            assert module.split(".")[0] != "ksi_client", f"{path}:{line}"


def test_plugins_use_the_door_alone_and_never_each_other() -> None:
    """K004: and open no port of their own."""
    plugins = ROOT / "plugins"
    names = {place.name for place in plugins.iterdir() if place.is_dir()}
    for path in modules(plugins):
        name = path.relative_to(plugins).parts[0]
        is_test = path.name.startswith(("test_", "conftest"))
        allowed = {"plugin", "testing"} if is_test else {"plugin"}
        for module, line in imports(path):
            top = module.split(".")[0]
            assert top not in ("ksi_client", "socketserver", "uvicorn", "starlette"), f"{path}:{line}"
            if top == "ksi_daemon":
                assert part(module) in allowed, f"{path}:{line} imports {module}: the door is ksi_daemon.plugin"
            if top in ("ksi_plugins", "plugins"):
                assert part(module) == name, f"{path}:{line} imports another plugin"
            assert top not in names - {name}, f"{path}:{line} imports another plugin"


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("aiosqlite", {"sqlite.py"}),
        # the audit keeps its own file by its own thread; the error boundary knows the database's errors by their class
        ("sqlite3", {"sqlite.py", "database_file.py", "audit", "hygiene/boundary.py"}),
        ("uvicorn", {"web/listener.py"}),
        ("structlog", {"log.py", "router.py", "plugin.py"}),
        ("uvloop", {"daemon.py"}),
        ("fcntl", {"var_dir.py"}),
    ],
)
def test_a_library_has_one_home(library: str, home: set[str]) -> None:
    users = {
        path.relative_to(DAEMON)
        for path in modules(DAEMON)
        for module, _ in imports(path)
        if module.split(".")[0] == library
    }
    assert {str(path) for path in users if str(path) not in home and path.parts[0] not in home} == set()


def test_the_losers_of_a_race_for_the_lock_load_the_standard_library_only() -> None:
    """F06: what `python -m ksi_daemon` imports before it holds the lock."""
    tree = ast.parse((DAEMON / "__main__.py").read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    wanted = {node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in at_once}
    assert {module for module in wanted if module.startswith("ksi_daemon")} == {
        "ksi_daemon.errors",
        "ksi_daemon.var_dir",
    }
    for name in ("__init__", "errors", "var_dir", "plugin_import"):
        for module, line in imports(DAEMON / f"{name}.py"):
            top = module.split(".")[0]
            assert top in sys.stdlib_module_names or top == "ksi_daemon", f"{name}.py:{line} imports {module}"


FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "pty.spawn", "subprocess.getoutput",
    "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "yaml.load", "yaml.unsafe_load", "tempfile.mktemp",
    "marshal.loads",
}  # fmt: skip
FORBIDDEN_MODULES = {"pickle", "cPickle", "shelve", "marshal", "dill", "jsonpickle", "telnetlib"}
OURS = [*modules(DAEMON), *modules(ROOT / "ksi_client"), *modules(ROOT / "plugins"), *modules(ROOT / "tests")]


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_runs_text_as_code_or_as_a_shell_command(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in FORBIDDEN_CALLS, f"{path}:{node.lineno} {ast.unparse(node.func)}"
            for keyword in node.keywords:
                if keyword.arg == "shell":
                    assert isinstance(keyword.value, ast.Constant), f"{path}:{node.lineno} shell="
                    assert keyword.value.value is False, f"{path}:{node.lineno} shell="
    for module, line in imports(path):
        assert module.split(".")[0] not in FORBIDDEN_MODULES, f"{path}:{line} imports {module}"


HOUSE = [*modules(DAEMON), *modules(ROOT / "ksi_client")]


@pytest.mark.parametrize("path", HOUSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for_stays_small_and_has_a_name(path: Path) -> None:
    """STYLE: a file is a noun, opens with a sentence, and under 400 lines."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree)
    assert docstring, "no docstring"
    assert len(docstring.split("\n")[0]) >= 10
    assert text.count("\n") <= 400
    assert path.stem not in ("utils", "helpers", "common", "base", "manager")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno <= 60, f"{node.name} is long"


@pytest.mark.parametrize("path", HOUSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_error_is_swallowed_without_a_word(path: Path) -> None:
    """An except clause that does nothing hides what it caught; `contextlib.suppress` at least names it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{path}:{node.lineno} bare except"
            assert not all(isinstance(one, ast.Pass) for one in node.body), f"{path}:{node.lineno} except: pass"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            names = {ast.unparse(argument) for argument in node.args}
            assert not names & {"Exception", "BaseException"}, f"{path}:{node.lineno} suppresses everything"


def test_the_core_is_written_through_the_same_door_as_any_plugin() -> None:
    for path in modules(DAEMON / "core"):
        if path.stem in ("__init__", "describe", "moment"):
            continue
        wanted = {module for module, _ in imports(path)}
        assert "ksi_daemon.plugin.Plugin" in wanted, path
        assert not wanted & {"ksi_daemon.handler.handler_from_function", "ksi_daemon.router.Route"}


def test_only_the_store_holds_the_cores_sql() -> None:
    """DESIGN section 10."""
    for path in modules(DAEMON / "core"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not node.value.startswith(("SELECT ", "INSERT ", "UPDATE ", "DELETE ", "CREATE ")), (
                    f"{path}:{node.lineno}"
                )
