"""What a source file defines: functions, classes and the like, with qualified names and spans; its imports and, if asked, its calls.

Parsed by tree-sitter, so broken source gives what can be parsed. The tree is walked by hand and not by tree-sitter's queries:
those take quadratic time on deeply nested source, without a way to stop them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from ksi_daemon.errors import Invalid, TimedOut, TooLarge

if TYPE_CHECKING:
    from tree_sitter import Language, Node

SOURCE_LIMIT_BYTES = 2_000_000
TIME_LIMIT_S = 2.0
DEPTH_LIMIT = 200  # of nodes; what is nested deeper is left out
LINE_LIMIT_CHARACTERS = 300
ERRORS_LIMIT = 20
READ_BYTES = 65_536
COMMENTS = {"comment", "line_comment", "block_comment"}
# What can hold a definition. Expressions do not, so most of a tree is never visited.
HOLDERS = (
    "_statement",
    "block",
    "body",
    "_clause",
    "_declaration",
    "_definition",
    "_list",
    "_item",
    "_declarations",
    "_module",
    "module",
)
HOLDER_NAMES = {
    "program",
    "source_file",
    "ERROR",
    "arrow_function",
    "function_expression",
    "class",
    "lexical_declaration",
}
NO_HOLDERS = {
    "argument_list",
    "parameter_list",
    "class_heritage",
    "expression_list",
    "import_statement",
    "use_declaration",
}


@dataclass(frozen=True, slots=True)
class Symbol:
    """One definition. Lines count from 1, bytes from 0. Decorators, `export` and comments above do not belong to its span."""

    name: str
    qualified_name: str  # inside the file: Outer.inner
    kind: str  # function, method, class, struct, interface, trait, enum, type, module, macro, constant or variable
    start_line: int
    end_line: int
    start_byte: int
    end_byte: int
    signature: str  # up to its body, on one line
    summary: str  # the first line of its docstring, or of the comment directly above


@dataclass(frozen=True, slots=True)
class Call:
    """A call as it is written, and the qualified name of the definition that it stands in."""

    name: str
    line: int
    caller: str


@dataclass(frozen=True, slots=True)
class FileSymbols:
    """All of one file, in the order of the source. `errors` are lines that could not be parsed, the first few."""

    language: str
    symbols: tuple[Symbol, ...]
    imports: tuple[str, ...]
    calls: tuple[Call, ...]
    errors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Grammar:
    """What the nodes of a language mean."""

    package: str
    suffixes: tuple[str, ...]
    definitions: Mapping[str, str]  # node type: kind
    imports: Mapping[str, str]  # node type: the field with what is imported
    calls: Mapping[str, str]  # node type: the field with what is called
    loader: str = "language"
    separator: str = "."
    scopes: Mapping[str, str] = field(
        default_factory=dict
    )  # node type: the field with a name that only qualifies others


SCRIPT = {
    "class_declaration": "class", "class": "class", "function_declaration": "function", "method_definition": "method",
    "generator_function_declaration": "function", "variable_declarator": "variable",
}  # fmt: skip
TYPED_SCRIPT = SCRIPT | {
    "abstract_class_declaration": "class", "interface_declaration": "interface", "type_alias_declaration": "type",
    "enum_declaration": "enum", "internal_module": "module", "module": "module", "method_signature": "method",
    "abstract_method_signature": "method", "function_signature": "function",
}  # fmt: skip
SCRIPT_IMPORTS = {"import_statement": "source", "export_statement": "source"}
SCRIPT_CALLS = {"call_expression": "function", "new_expression": "constructor"}
GRAMMARS: dict[str, _Grammar] = {
    "python": _Grammar(
        "tree_sitter_python",
        (".py", ".pyi"),
        {
            "class_definition": "class", "function_definition": "function", "assignment": "variable",
            "type_alias_statement": "type",
        },
        {"import_statement": "name", "import_from_statement": "module_name"},
        {"call": "function"},
    ),
    "typescript": _Grammar(
        "tree_sitter_typescript", (".ts", ".mts", ".cts"), TYPED_SCRIPT, SCRIPT_IMPORTS, SCRIPT_CALLS, "language_typescript"
    ),
    "tsx": _Grammar("tree_sitter_typescript", (".tsx",), TYPED_SCRIPT, SCRIPT_IMPORTS, SCRIPT_CALLS, "language_tsx"),
    "javascript": _Grammar("tree_sitter_javascript", (".js", ".mjs", ".cjs", ".jsx"), SCRIPT, SCRIPT_IMPORTS, SCRIPT_CALLS),
    "go": _Grammar(
        "tree_sitter_go",
        (".go",),
        {
            "function_declaration": "function", "method_declaration": "method", "type_spec": "type", "type_alias": "type",
            "const_spec": "constant", "var_spec": "variable",
        },
        {"import_spec": "path"},
        {"call_expression": "function"},
    ),
    "rust": _Grammar(
        "tree_sitter_rust",
        (".rs",),
        {
            "function_item": "function", "function_signature_item": "function", "struct_item": "struct",
            "union_item": "struct", "enum_item": "enum", "trait_item": "trait", "type_item": "type", "mod_item": "module",
            "const_item": "constant", "static_item": "constant", "macro_definition": "macro",
        },
        {"use_declaration": "argument"},
        {"call_expression": "function", "macro_invocation": "macro"},
        separator="::",
        scopes={"impl_item": "type"},
    ),
    "java": _Grammar(
        "tree_sitter_java",
        (".java",),
        {
            "class_declaration": "class", "record_declaration": "class", "interface_declaration": "interface",
            "annotation_type_declaration": "interface", "enum_declaration": "enum", "method_declaration": "method",
            "constructor_declaration": "method", "variable_declarator": "variable",
        },
        {"import_declaration": ""},
        {"method_invocation": "name", "object_creation_expression": "type"},
    ),
}  # fmt: skip
BY_SUFFIX = {suffix: language for language, grammar in GRAMMARS.items() for suffix in grammar.suffixes}
TYPES = {"class", "struct", "interface", "trait", "enum"}  # a function directly inside is a method
GO_TYPES = {"struct_type": "struct", "interface_type": "interface"}
FUNCTION_VALUES = {"arrow_function", "function_expression", "generator_function"}


def language_of(path: str) -> str | None:
    """The language of a file, by the end of its name; None for any that is not parsed."""
    dot = path.rfind(".")
    return BY_SUFFIX.get(path[dot:].lower()) if dot >= 0 else None


def symbols_of(source: str | bytes, language: str, *, calls: bool = False) -> FileSymbols:
    """Parse one file. Blocks for as long as that takes, at most about two seconds: run it in a thread."""
    grammar = GRAMMARS.get(language)
    if grammar is None:
        raise Invalid(f"no grammar for {language!r}", hint=f"there are {', '.join(GRAMMARS)}")
    content = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    if len(content) > SOURCE_LIMIT_BYTES:
        raise TooLarge(f"the source has {len(content):,} bytes, at most {SOURCE_LIMIT_BYTES:,} are parsed")
    return _Walk(content, language, grammar, deadline=time.monotonic() + TIME_LIMIT_S).run(calls=calls)


@cache
def _loaded(package: str, loader: str) -> Language:
    from tree_sitter import Language

    return Language(getattr(importlib.import_module(package), loader)())


@dataclass(frozen=True, slots=True)
class _Place:
    """A node that is to be visited: what it is inside of."""

    node: Node
    scope: str = ""  # the qualified name around it
    kind: str = "file"  # of the definition around it
    depth: int = 0


class _Walk:
    """One pass through one tree."""

    def __init__(self, content: bytes, language: str, grammar: _Grammar, *, deadline: float) -> None:
        self._content = content
        self._language = language
        self._grammar = grammar
        self._deadline = deadline
        self._symbols: list[Symbol] = []
        self._imports: list[str] = []
        self._spans: list[tuple[int, int, str]] = []

    def run(self, *, calls: bool) -> FileSymbols:
        from tree_sitter import Parser

        parser = Parser(_loaded(self._grammar.package, self._grammar.loader))
        try:
            tree = parser.parse(
                lambda offset, _: self._content[offset : offset + READ_BYTES],
                progress_callback=lambda _, __: time.monotonic() > self._deadline,
            )
        except ValueError as error:
            raise TimedOut(f"the source was not parsed within {TIME_LIMIT_S:g} s") from error
        waiting = [_Place(tree.root_node)]
        while waiting:
            waiting += reversed(self._visit(waiting.pop()))
            self._check_time()
        self._symbols.sort(key=lambda symbol: (symbol.start_byte, -symbol.end_byte))
        return FileSymbols(
            language=self._language,
            symbols=tuple(self._symbols),
            imports=tuple(dict.fromkeys(self._imports)),
            calls=tuple(self._calls(tree.root_node)) if calls else (),
            errors=tuple(self._errors(tree.root_node)) if tree.root_node.has_error else (),
        )

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TimedOut(f"the symbols were not found within {TIME_LIMIT_S:g} s")

    def _visit(self, place: _Place) -> list[_Place]:
        """Note what a node defines; the nodes below it that may define more."""
        node, scope, kind = place.node, place.scope, place.kind
        if node.type in self._grammar.imports:
            self._import(node)
        if node.type in self._grammar.scopes:
            qualifier = node.child_by_field_name(self._grammar.scopes[node.type])
            scope, kind = self._joined(scope, self._text(qualifier).partition("<")[0]), "class"
        elif node.type in self._grammar.definitions and (symbol := self._symbol(place)) is not None:
            self._symbols.append(symbol)
            self._spans.append((symbol.start_byte, symbol.end_byte, symbol.qualified_name))
            scope, kind = symbol.qualified_name, symbol.kind
        if place.depth >= DEPTH_LIMIT:
            return []
        return [_Place(child, scope, kind, place.depth + 1) for child in node.named_children if self._may_hold(child)]

    def _may_hold(self, node: Node) -> bool:
        kind = node.type
        if kind in self._grammar.definitions or kind in self._grammar.imports or kind in HOLDER_NAMES:
            return True
        return kind.endswith(HOLDERS) and kind not in NO_HOLDERS

    def _symbol(self, place: _Place) -> Symbol | None:
        node = place.node
        named = node.child_by_field_name("left" if node.type in ("assignment", "type_alias_statement") else "name")
        if named is None:
            return None
        name = self._text(named)
        kind = self._kind(place, named, name)
        if not name or kind is None:
            return None
        scope = place.scope
        if node.type == "method_declaration" and self._language == "go":
            scope = self._receiver(node)
        return Symbol(
            name=name,
            qualified_name=self._joined(scope, name),
            kind=kind,
            start_line=node.start_point.row + 1,
            end_line=node.end_point.row + 1,
            start_byte=node.start_byte,
            end_byte=node.end_byte,
            signature=self._signature(node),
            summary=self._summary(node),
        )

    def _kind(self, place: _Place, named: Node, name: str) -> str | None:
        """The kind of a definition; None for a variable that is local, or whose name is a pattern."""
        kind = self._grammar.definitions[place.node.type]
        if kind == "function" and place.kind in TYPES:
            return "method"
        if place.node.type == "type_spec":
            shape = place.node.child_by_field_name("type")
            return GO_TYPES.get(shape.type if shape is not None else "", kind)
        if kind not in ("variable", "constant"):
            return kind
        value = place.node.child_by_field_name("value")
        if value is not None and value.type in FUNCTION_VALUES and self._language != "java":
            return "function"
        if place.kind not in ("file", "module", *TYPES) or not named.type.endswith("identifier"):
            return None
        return "constant" if kind == "constant" or name.isupper() else "variable"

    def _receiver(self, node: Node) -> str:
        receiver = node.child_by_field_name("receiver")
        words = self._text(receiver).strip("()").partition("[")[0].replace("*", " ").split()
        return words[-1] if words else ""

    def _joined(self, scope: str, name: str) -> str:
        return f"{scope}{self._grammar.separator}{name}" if scope else name

    def _text(self, node: Node | None) -> str:
        if node is None:
            return ""
        return self._content[node.start_byte : node.end_byte][: LINE_LIMIT_CHARACTERS * 4].decode("utf-8", "replace")

    def _signature(self, node: Node) -> str:
        value = node.child_by_field_name("value")
        body = node.child_by_field_name("body") or (value.child_by_field_name("body") if value is not None else None)
        end = body.start_byte if body is not None else node.end_byte
        head = self._content[node.start_byte : min(end, node.start_byte + LINE_LIMIT_CHARACTERS * 4)]
        text = head.decode("utf-8", "replace")
        if body is None:
            text = text.partition("\n")[0]
        return " ".join(text.split())[:LINE_LIMIT_CHARACTERS].rstrip(" :;{")

    def _summary(self, node: Node) -> str:
        if self._language == "python":
            body = node.child_by_field_name("body")
            first = next(iter(body.named_children), None) if body is not None else None
            inside = first.named_children if first is not None and first.type == "expression_statement" else []
            string = next(iter(inside), None)
            lines = (
                self._text(string).lstrip("rRuU").splitlines() if string is not None and string.type == "string" else []
            )
        else:
            lines = self._comment_above(node)
        cleaned = (line.strip().strip("\"'").removeprefix("/**").strip("/*! \t").strip() for line in lines)
        return next((line[:LINE_LIMIT_CHARACTERS] for line in cleaned if line), "")

    def _comment_above(self, node: Node) -> list[str]:
        parent = node.parent
        while parent is not None and parent.start_byte == node.start_byte and parent.parent is not None:
            node, parent = parent, parent.parent
        if parent is not None and parent.type in ("export_statement", "lexical_declaration", "type_declaration"):
            node = parent.parent if parent.parent is not None and parent.parent.type == "export_statement" else parent
        lines: list[str] = []
        above = node.prev_named_sibling
        line = node.start_point.row
        while above is not None and (above.type in COMMENTS or above.type == "attribute_item"):
            last_row = above.end_point.row - (1 if above.end_point.column == 0 else 0)
            if line - last_row != 1:
                break
            if above.type in COMMENTS:
                lines = self._text(above).splitlines() + lines
            line = above.start_point.row
            above = above.prev_named_sibling
        return lines

    def _import(self, node: Node) -> None:
        field_name = self._grammar.imports[node.type]
        wanted = node.children_by_field_name(field_name) if field_name else node.named_children[:1]
        for part in wanted:
            name = part.child_by_field_name("name") if part.type == "aliased_import" else part
            self._imports.append(self._text(name).strip("\"'`"))

    def _calls(self, root: Node) -> list[Call]:
        found: list[Call] = []
        callable_spans = sorted(self._spans)
        waiting = [(root, 0)]
        while waiting:
            node, depth = waiting.pop()
            called = (
                node.child_by_field_name(self._grammar.calls[node.type]) if node.type in self._grammar.calls else None
            )
            if called is not None:
                around = [name for start, end, name in callable_spans if start <= node.start_byte < end]
                name = " ".join(self._text(called).split())[:LINE_LIMIT_CHARACTERS]
                found.append(Call(name, node.start_point.row + 1, around[-1] if around else ""))
            if depth < DEPTH_LIMIT:
                waiting += [(child, depth + 1) for child in reversed(node.named_children)]
            self._check_time()
        return found

    def _errors(self, root: Node) -> list[int]:
        lines: list[int] = []
        waiting = [(root, 0)]
        while waiting and len(lines) < ERRORS_LIMIT:
            node, depth = waiting.pop()
            if node.is_error or node.is_missing:
                lines.append(node.start_point.row + 1)
            elif node.has_error and depth < DEPTH_LIMIT:
                waiting += [(child, depth + 1) for child in reversed(node.children)]
            self._check_time()
        return list(dict.fromkeys(lines)) or [1]
