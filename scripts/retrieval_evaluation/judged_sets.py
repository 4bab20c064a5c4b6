"""Readers of the judged sets: texts, questions, and which texts answer them."""

import ast
import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ksi_daemon.retrieval.document import Document

CODE_FUNCTIONS = 1_500
ADVERSARIAL = 5  # a category of LoCoMo without an answer


@dataclass(frozen=True, slots=True)
class Question:
    """A query with the ids of the documents that answer it; only documents of its namespace are searched."""

    text: str
    answers: frozenset[str]
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """What is indexed and what is asked."""

    name: str
    measure: str  # "ndcg" or "recall", both at 10
    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


def _text(document_id: str, title: str, text: str) -> Document:
    return Document(id=document_id, title=" ".join(title.split()), text=text, format="text")


def _questions(texts: dict[str, str], answers: dict[str, set[str]]) -> tuple[Question, ...]:
    return tuple(Question(texts[name], frozenset(found)) for name, found in answers.items() if name in texts)


def scifact(folder: Path) -> JudgedSet:
    """Claims and the abstracts that support or contradict them."""
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    asked = [json.loads(line) for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    answers: dict[str, set[str]] = {}
    for line in (folder / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade, *_ = line.split("\t")
        if int(grade) > 0:
            answers.setdefault(query, set()).add(document)
    return JudgedSet(
        "scifact",
        "ndcg",
        tuple(_text(row["_id"], row["title"], row["text"]) for row in rows),
        _questions({row["_id"]: row["text"] for row in asked}, answers),
    )


def _fields(path: Path) -> Iterator[dict[str, str]]:
    """Entries of a file whose lines `.I`, `.T`, `.W`, … start a field."""
    for entry in re.split(r"^\.I ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        number, *rest = re.split(r"^\.([A-Z])[ \t]*\n", entry, flags=re.MULTILINE)
        yield {"I": number.strip(), **dict(zip(rest[::2], rest[1::2], strict=True))}


def cacm(folder: Path) -> JudgedSet:
    """Titles and abstracts of a journal's early years."""
    documents = [_text(entry["I"], entry.get("T", ""), entry.get("W", "")) for entry in _fields(folder / "cacm.all")]
    answers: dict[str, set[str]] = {}
    for line in (folder / "qrels.text").read_text(encoding="utf-8").splitlines():
        query, document, *_ = line.split()
        answers.setdefault(str(int(query)), set()).add(document)
    asked = {entry["I"]: " ".join(entry["W"].split()) for entry in _fields(folder / "query.text") if "W" in entry}
    return JudgedSet("cacm", "ndcg", tuple(documents), _questions(asked, answers))


def _element(entry: str, name: str) -> str:
    found = re.search(rf"<{name}>(.*?)</{name}>", entry, re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def cranfield(folder: Path) -> JudgedSet:
    """Abstracts on aerodynamics. The judgements number the questions by their place in the file."""
    corpus = (folder / "cran.all.1400.xml").read_text(encoding="utf-8").split("</doc>")[:-1]
    documents = [_text(_element(entry, "docno"), _element(entry, "title"), _element(entry, "text")) for entry in corpus]
    entries = (folder / "cran.qry.xml").read_text(encoding="utf-8").split("</top>")[:-1]
    asked = {str(number): _element(entry, "title") for number, entry in enumerate(entries, start=1)}
    answers: dict[str, set[str]] = {}
    for line in (folder / "cranqrel.trec.txt").read_text(encoding="utf-8").splitlines():
        query, _, document, grade = line.split()
        if int(grade) > 0:
            answers.setdefault(query, set()).add(document)
    return JudgedSet("cranfield", "ndcg", tuple(one for one in documents if one.text), _questions(asked, answers))


def locomo(folder: Path) -> JudgedSet:
    """Turns of long conversations, and questions with the turns that hold the answer."""
    documents: list[Document] = []
    questions: list[Question] = []
    for number, entry in enumerate(json.loads((folder / "conversations-1-3.json").read_text(encoding="utf-8"))):
        namespace = f"conversation-{number}"
        for name, turns in entry["conversation"].items():
            if not re.fullmatch(r"session_\d+", name):
                continue
            for turn in turns:
                text = f"{turn['speaker']}: {turn['text']}"
                documents.append(
                    Document(id=f"{namespace} {turn['dia_id']}", text=text, format="text", namespace=namespace)
                )
        known = {document.id for document in documents}
        for asked in entry["qa"]:
            evidence = {f"{namespace} {turn}" for turn in asked.get("evidence", ())} & known
            if asked["category"] != ADVERSARIAL and evidence:
                questions.append(Question(asked["question"], frozenset(evidence), namespace))
    return JudgedSet("locomo", "recall", tuple(documents), tuple(questions))


def code(_: Path) -> JudgedSet:
    """Functions of the standard library without their docstrings; the first sentence of each docstring asks for its function."""
    documents: list[Document] = []
    questions: list[Question] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
                continue
            sentence = re.split(r"(?<=[.])\s|\n\s*\n", ast.get_docstring(node) or "")[0]
            if len(sentence.split()) < 5:
                continue
            name = f"{path.stem}.{node.name}:{node.lineno}"
            node.body = node.body[1:]
            documents.append(Document(id=name, text=ast.unparse(node), format="code"))
            questions.append(Question(" ".join(sentence.split()), frozenset({name})))
    return JudgedSet("code", "ndcg", tuple(documents[:CODE_FUNCTIONS]), tuple(questions[:CODE_FUNCTIONS]))


READERS = {"scifact": scifact, "cacm": cacm, "cranfield": cranfield, "locomo": locomo, "code": code}
