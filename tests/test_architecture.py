"""Rules that can be read off the source: who imports whom, and calls that are forbidden everywhere."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DAEMON = ROOT / "ksi_daemon"

# DESIGN section 4, lowest first: a part imports from its own layer or from below.
LAYERS: list[set[str]] = [
    {"ksi_daemon", "errors", "config", "principal", "access", "identifiers", "view_settings"},
    {"handler", "notice"},
    {"view"},
    {"storage", "retrieval", "workers", "logs"},
    {"hygiene", "plugin_settings"},
    {"plugin"},
    {"gate", "audit"},
    {"routing", "plugin_host"},
    {"process"},
    {"agents"},
    {"completion"},
    {"core", "web", "operator_socket", "mcp"},
    {"daemon"},
    {"__main__", "testing"},
]


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in it, with the line."""
    for node in ast.walk(syntax_tree(path)):
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
    """`ksi_daemon.storage.state` -> `storage`; the package itself -> `ksi_daemon`."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else pieces[0]


def layer(name: str) -> int:
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    raise AssertionError(f"{name} is in no layer: add it to LAYERS")


def parts_of_daemon() -> set[str]:
    return {path.relative_to(DAEMON).parts[0].removesuffix(".py") for path in modules(DAEMON)} - {
        "__init__",
        "shipped_plugins",
    }


def own_part(path: Path) -> str:
    name = path.relative_to(DAEMON).parts[0].removesuffix(".py")
    return "ksi_daemon" if name == "__init__" else name


def test_imports_point_down_only() -> None:
    """DESIGN section 4."""
    known = parts_of_daemon()
    for path in modules(DAEMON):
        for module, line in imports(path):
            if module.startswith("ksi_daemon.") and part(module) in known:
                assert layer(part(module)) <= layer(own_part(path)), f"{path}:{line} imports {module} from above"


def test_every_part_of_the_daemon_is_in_one_layer_and_every_name_in_the_layers_exists() -> None:
    assert parts_of_daemon() | {"ksi_daemon"} == set().union(*LAYERS)
    assert sum(map(len, LAYERS)) == len(set().union(*LAYERS))


def test_no_part_of_the_daemon_imports_itself_in_a_circle() -> None:
    """Also between parts of one layer."""
    known = parts_of_daemon()
    graph: dict[str, set[str]] = {}
    for path in modules(DAEMON):
        wanted = {
            part(module) for module, _ in imports(path) if module.startswith("ksi_daemon.") and part(module) in known
        }
        graph.setdefault(own_part(path), set()).update(wanted - {own_part(path)})
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


def test_plugins_import_the_plugin_api_alone_and_never_each_other() -> None:
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
                assert part(module) in allowed, f"{path}:{line} imports {module}: only ksi_daemon.plugin is allowed"
            if top in ("ksi_plugins", "plugins"):
                assert part(module) == name, f"{path}:{line} imports another plugin"
            assert top not in names - {name}, f"{path}:{line} imports another plugin"


# Which part may import a library that the rest of the daemon is kept away from.
ONLY_USED_BY: dict[str, set[str]] = {
    "aiosqlite": {"storage/sqlite.py"},
    # the audit writes its own file from its own thread; the error boundary recognises the database's error classes
    "sqlite3": {"storage/sqlite.py", "storage/database_file.py", "audit", "hygiene/boundary.py"},
    "uvicorn": {"web/listener.py", "web/http_protocol.py"},
    "httptools": {"web/http_protocol.py"},
    "structlog": {"logs/log.py", "routing/router.py", "plugin.py"},
    "uvloop": {"daemon.py"},
    "fcntl": {"process/var_dir.py", "web/http_protocol.py", "agents"},
    # importing the SDK takes a second, so its one user is imported after the daemon is ready
    "mcp": {"mcp/dynamic_server.py"},
    "mcp_types": {"mcp/dynamic_server.py"},
    # heavy, and only ever imported inside a function: the start of the daemon must not wait for them
    "numpy": {"retrieval"},
    "onnxruntime": {"retrieval/minilm_embedder.py"},
    "tokenizers": {"retrieval/minilm_embedder.py", "retrieval/static_embedder.py"},
    "rustworkx": {"retrieval/graph.py"},
    "tree_sitter": {"retrieval/symbols.py"},
    "watchfiles": {"retrieval/watch.py"},
    "tomlkit": {"agents/client_config.py"},
    "yaml": {"retrieval/front_matter.py"},
    "markdown_it": {"retrieval/chunking.py"},
}


def test_a_library_is_imported_by_the_part_that_wraps_it_and_by_no_other() -> None:
    for path in modules(DAEMON):
        place = path.relative_to(DAEMON)
        for module, line in imports(path):
            allowed = ONLY_USED_BY.get(module.split(".")[0])
            assert allowed is None or str(place) in allowed or place.parts[0] in allowed, f"{path}:{line} {module}"


def test_the_losers_of_a_race_for_the_lock_load_the_standard_library_only() -> None:
    """F06: what `python -m ksi_daemon` imports before it holds the lock."""
    tree = syntax_tree(DAEMON / "__main__.py")
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    wanted = {node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in at_once}
    assert {module for module in wanted if module.startswith("ksi_daemon")} == {
        "ksi_daemon.errors",
        "ksi_daemon.process.start_failure",
        "ksi_daemon.process.var_dir",
    }
    for name in (
        "__init__",
        "errors",
        "process/__init__",
        "process/forked",
        "process/start_failure",
        "process/var_dir",
        "workers/__init__",
        "workers/plugin_import",
    ):
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


def test_nothing_runs_text_as_code_or_as_a_shell_command() -> None:
    for path in OURS:
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in FORBIDDEN_CALLS, f"{path}:{node.lineno} {ast.unparse(node.func)}"
                for keyword in node.keywords:
                    if keyword.arg == "shell":
                        assert isinstance(keyword.value, ast.Constant), f"{path}:{node.lineno} shell="
                        assert keyword.value.value is False, f"{path}:{node.lineno} shell="
        for module, line in imports(path):
            assert module.split(".")[0] not in FORBIDDEN_MODULES, f"{path}:{line} imports {module}"


SHIPPED_CODE = [*modules(DAEMON), *modules(ROOT / "ksi_client")]


def test_a_module_says_what_it_is_for_and_has_a_name_that_tells() -> None:
    """STYLE: a file is a noun and opens with a sentence."""
    for path in SHIPPED_CODE:
        docstring = ast.get_docstring(syntax_tree(path))
        assert docstring, f"{path}: no docstring"
        assert len(docstring.split("\n")[0]) >= 10, path
        assert path.stem not in ("utils", "helpers", "common", "base", "manager"), path


def test_no_except_clause_hides_what_it_caught() -> None:
    """An except clause that does nothing hides what it caught; `contextlib.suppress` at least names it."""
    for path in SHIPPED_CODE:
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{path}:{node.lineno} bare except"
                assert not all(isinstance(step, ast.Pass) for step in node.body), f"{path}:{node.lineno} except: pass"
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                names = {ast.unparse(argument) for argument in node.args}
                assert not names & {"Exception", "BaseException"}, f"{path}:{node.lineno} suppresses everything"


def test_the_core_is_written_through_the_same_api_as_any_plugin() -> None:
    for path in modules(DAEMON / "core"):
        if path.stem in ("__init__", "moment", "reach", "spawned_agents"):
            continue
        wanted = {module for module, _ in imports(path)}
        assert "ksi_daemon.plugin.Plugin" in wanted, path
        assert not wanted & {"ksi_daemon.handler.handler_from_function", "ksi_daemon.routing.router.Route"}


def test_only_the_storage_holds_the_cores_sql() -> None:
    """DESIGN section 10."""
    for path in modules(DAEMON / "core"):
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not node.value.startswith(("SELECT ", "INSERT ", "UPDATE ", "DELETE ", "CREATE ")), (
                    f"{path}:{node.lineno}"
                )
