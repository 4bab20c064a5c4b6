"""Symbols of every language that is parsed: names, kinds, spans; and what broken, hostile and oversized source gives."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksi_daemon.errors import Invalid, TimedOut, TooLarge
from ksi_daemon.retrieval import symbols
from ksi_daemon.retrieval.chunking import CHUNK_LIMIT_CHARACTERS, OVERLAP_LIMIT_CHARACTERS, chunk_text
from ksi_daemon.retrieval.retrieval import Retrieval
from ksi_daemon.retrieval.symbols import GRAMMARS, SOURCE_LIMIT_BYTES, language_of, symbols_of
from tests.cases import case

PYTHON = '''import os, a.b as c
from .near import y
LIMIT = 3
x, y = 1, 2
@decorated
class Box(Base):
    """Holds things.

    More of it."""
    size: int = 2
    async def open(self, a: int) -> str:
        \'\'\'
        Opens it. é
        \'\'\'
        local = 3
        def inner(): return call_me(a)
        return inner()
if True:
    def late(): pass
type Id = int
'''
TYPESCRIPT = """import {x} from "./x";
/** A box. */
export interface Box<T> { open(a: number): void }
export type Id = string;
// The limit
// of it
export const LIMIT = 3;
export const run = async (a: number) => { const k = 1; go(k) };
export default class A extends B { constructor() { super() } get v(): number { return 1 } }
abstract class C { abstract f(): void }
enum E { A }
namespace N { export function g() {} }
"""
JAVASCRIPT = """const {a, b} = require("x");
const fs = require("fs");
function f() { function g() {} return new K() }
class A { static m() {} }
var h = function () {};
export * from "./z"
"""
GO = """package p
import (
  "fmt"
  m "math"
)
// Box holds.
type Box struct { n int }
type I interface { F() }
type ID = string
const (
  A = 1
)
var v = 2
// Open opens it.
func (b *Box[T]) Open(a int) error { x := 1; return fmt.Errorf("x") }
func F() {}
"""
RUST = """use std::io;
/// A point.
#[derive(Debug)]
pub struct P<T> { x: T }
impl<T> Display for P<T> {
    /// Make.
    pub fn new(x: T) -> Self { foo(x); println!("a"); P { x } }
}
trait T1 { fn f(&self); }
mod m { pub const A: i32 = 1; }
macro_rules! mm { () => {} }
enum E { A }
type X = i32;
"""
JAVA = """package a.b;
import java.util.List;
/** A box.
 * more */
public class Box<T> extends B {
  static final int LIMIT = 3;
  /** Opens. */
  @Override public List<T> open(int a) throws E { int k = 1; return foo.bar(new X()); }
  Box() {}
  interface I { void f(); }
  enum E { A; void g() {} }
  record R(int x) {}
}
"""
# language: source, "kind qualified-name first-last", summaries, imports, calls as "caller name"
CASES: dict[str, tuple[str, list[str], dict[str, str], tuple[str, ...], list[str]]] = {
    "python": (
        PYTHON,
        ["constant LIMIT 3-3", "class Box 6-17", "variable Box.size 10-10", "method Box.open 11-17",
         "function Box.open.inner 16-16", "function late 19-19", "type Id 20-20"],
        {"Box": "Holds things.", "Box.open": "Opens it. é"},
        ("os", "a.b", ".near"),
        ["Box.open.inner call_me", "Box.open inner"],
    ),
    "typescript": (
        TYPESCRIPT,
        ["interface Box 3-3", "method Box.open 3-3", "type Id 4-4", "constant LIMIT 7-7", "function run 8-8", "class A 9-9",
         "method A.constructor 9-9", "method A.v 9-9", "class C 10-10", "method C.f 10-10", "enum E 11-11", "module N 12-12",
         "function N.g 12-12"],
        {"Box": "A box.", "LIMIT": "The limit"},
        ("./x",),
        ["run go", "A.constructor super"],
    ),
    "tsx": (
        "/** Shows. */\nexport function App({a}: P) { return <div onClick={() => f(a)}>x</div> }\n",
        ["function App 2-2"], {"App": "Shows."}, (), ["App f"],
    ),
    "javascript": (
        JAVASCRIPT,
        ["variable fs 2-2", "function f 3-3", "function f.g 3-3", "class A 4-4", "method A.m 4-4", "function h 5-5"],
        {},
        ("./z",),
        [" require", "fs require", "f K"],
    ),
    "go": (
        GO,
        ["struct Box 7-7", "interface I 8-8", "type ID 9-9", "constant A 11-11", "variable v 13-13", "method Box.Open 15-15",
         "function F 16-16"],
        {"Box": "Box holds.", "Box.Open": "Open opens it."},
        ("fmt", "math"),
        ["Box.Open fmt.Errorf"],
    ),
    "rust": (
        RUST,
        ["struct P 4-4", "method P::new 7-7", "trait T1 9-9", "method T1::f 9-9", "module m 10-10", "constant m::A 10-10",
         "macro mm 11-11", "enum E 12-12", "type X 13-13"],
        {"P": "A point.", "P::new": "Make."},
        ("std::io",),
        ["P::new foo", "P::new println"],
    ),
    "java": (
        JAVA,
        ["class Box 5-13", "constant Box.LIMIT 6-6", "method Box.open 8-8", "method Box.Box 9-9", "interface Box.I 10-10",
         "method Box.I.f 10-10", "enum Box.E 11-11", "method Box.E.g 11-11", "class Box.R 12-12"],
        {"Box": "A box.", "Box.open": "Opens."},
        ("java.util.List",),
        ["Box.open bar", "Box.open X"],
    ),
}  # fmt: skip


def test_every_language_gives_names_kinds_spans_summaries_imports_and_calls() -> None:
    assert set(CASES) == set(GRAMMARS)
    for language, (source, expected, summaries, imports, calls) in CASES.items():
        with case(language):
            found = symbols_of(source, language, calls=True)
            shown = [f"{one.kind} {one.qualified_name} {one.start_line}-{one.end_line}" for one in found.symbols]
            assert shown == expected
            assert {one.qualified_name: one.summary for one in found.symbols if one.summary} == summaries
            assert found.imports == imports
            assert [f"{call.caller} {call.name}" for call in found.calls] == calls
            assert found.errors == ()
            for one in found.symbols:
                assert one.name in source.encode()[one.start_byte : one.end_byte].decode()


def test_a_signature_ends_where_the_body_begins() -> None:
    by_name = {one.qualified_name: one.signature for one in symbols_of(PYTHON, "python").symbols}
    assert by_name["Box"] == "class Box(Base)"
    assert by_name["Box.open"] == "async def open(self, a: int) -> str"
    wrapped = symbols_of("def f(\n    a,\n    b,\n):\n    pass\n", "python").symbols[0]
    assert wrapped.signature == "def f( a, b, )"


def test_broken_source_gives_what_can_be_parsed_and_says_where_it_is_broken() -> None:
    source = "def before():\n    pass\n\nclass X:\n    def m(self, :\n        return 1\n\ndef after():\n    return 1\n"
    found = symbols_of(source, "python")
    assert {"before", "after"} <= {one.name for one in found.symbols}
    assert found.errors == (5,)


def test_hostile_source_ends_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [
        "x = " + "(" * 100_000,
        "f(" * 100_000 + ")" * 100_000,
        "[" * 300_000,
        "if a:\n" * 1_000,
        "\0\xff" * 1_000,
    ]
    for source in (*sources, "x = " + "1+" * 50_000 + "1", "{" * 50_000, "class A {" * 20_000):
        for language in ("python", "typescript", "rust"):
            with case(language, source[:20]):
                assert symbols_of(source, language, calls=True).language == language
    with pytest.raises(TooLarge):
        symbols_of("#" * (SOURCE_LIMIT_BYTES + 1), "python")
    with pytest.raises(Invalid):
        symbols_of("", "cobol")
    monkeypatch.setattr(symbols, "TIME_LIMIT_S", -1.0)
    with pytest.raises(TimedOut):
        symbols_of(PYTHON * 50, "python")


async def test_the_capability_knows_languages_by_the_end_of_the_name() -> None:
    for path, language in {
        "a/b.PY": "python",
        "x.tsx": "tsx",
        "x.d.ts": "typescript",
        "x.txt": None,
        "py": None,
    }.items():
        with case(path):
            assert language_of(path) == language
    found = await Retrieval.symbols("a.py", b"def f(): pass\n")
    assert found is not None
    assert [one.name for one in found.symbols] == ["f"]
    assert await Retrieval.symbols("a.txt", "def f(): pass\n") is None


def test_code_is_cut_at_its_definitions_and_long_ones_at_those_inside() -> None:
    long = "".join(f"    # About {n}.\n    def m{n}(self):\n        return {'x' * 300!r}\n\n" for n in range(6))
    short = "class Short:\n    def m(self):\n        pass\n"
    source = f"import os\nSIZE = 1\n\n# Says hé.\n@cached\ndef greet():\n    return 1\n\n\nclass Long:\n{long}\n\n{short}\n\nprint(1)\n"
    chunks = chunk_text("a/b.py", source, format="code")
    assert [chunk.heading for chunk in chunks] == [
        "", "greet", "Long", *(f"Long.m{n}" for n in range(6)), "Short", ""
    ]  # fmt: skip
    assert chunks[1].text.startswith("# Says hé.\n@cached\ndef greet")
    assert chunks[3].text.startswith("# About 0.")


@given(
    parts=st.lists(st.sampled_from(["def f():\n", "  ", "class A:\n", "    pass\n", "# é\n", "x = 1\n", "'''", "(", "\n", "@d\n", "y" * 700, "\r"])),
    suffix=st.sampled_from([suffix for grammar in GRAMMARS.values() for suffix in grammar.suffixes]),
)  # fmt: skip
def test_every_word_of_code_is_in_a_chunk(parts: list[str], suffix: str) -> None:
    text = "".join(parts)
    chunks = chunk_text(f"a{suffix}", text, format="code")
    covered = bytearray(len(text))
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert len(chunk.text) <= CHUNK_LIMIT_CHARACTERS + OVERLAP_LIMIT_CHARACTERS + 1
        covered[chunk.start : chunk.end] = b"\1" * (chunk.end - chunk.start)
    assert not "".join(text[place] for place, done in enumerate(covered) if not done).strip()
    assert len({chunk.id for chunk in chunks}) == len(chunks)


def test_the_start_of_the_daemon_loads_no_grammar_no_graph_and_no_model() -> None:
    program = "import sys, ksi_daemon.plugin, ksi_daemon.daemon; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    names = {name.partition(".")[0] for name in ran.stdout.split()}
    heavy = {"rustworkx", "numpy", "onnxruntime", "tokenizers", "yaml", "markdown_it"}
    assert not {name for name in names if name.startswith("tree_sitter") or name in heavy}
