"""How the index is: what is searchable, what still waits for its better vectors, and what went wrong."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class IndexState:
    """`queued` while vectors wait for the worker, `running` while it works, `failed` when it cannot go on."""

    state: Literal["queued", "running", "done", "failed"]
    documents: int
    chunks: int  # all of them are searchable by words and instant vectors
    waiting: int  # chunks without a vector of the embedder that is wanted
    failed: int  # chunks whose text that embedder refused
    embedder: str  # the one that is wanted
    serving: str  # the one whose vectors answer; for chunks that it has no vector of, the instant one
    is_degraded: bool  # the worker or the embedder of queries fails: until it succeeds, instant or old vectors answer
    last_error: str | None  # why that is, or why the embedder refused a text
    purge_waiting: bool  # deleted text may still be in the file

    def differs(self, other: "IndexState") -> bool:
        """Whether something else than a number has changed, or whether something failed or no longer does."""

        def shown(state: IndexState) -> tuple[object, ...]:
            return state.state, state.serving, state.is_degraded, state.last_error, state.failed > 0

        return shown(self) != shown(other)
