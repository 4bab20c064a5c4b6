"""`scripts/eval-handshake`, without the tokenizers, which need a network to install."""

from typing import Any

from scripts.handshake_evaluation.__main__ import complaints, lists


def row(thin: int, estimated: float) -> dict[str, Any]:
    return {"count": "made up", "share": thin / 100, "estimated": {"full": 1.0, "thin": estimated}}


def test_it_lists_the_same_tools_in_full_and_thin() -> None:
    """K012"""
    found = lists()
    names = {kind: [tool["name"] for tool in tools] for kind, tools in found.items()}
    assert names["full"] == names["thin"]
    assert len(names["full"]) > 20
    assert all(tool["inputSchema"] == {"type": "object"} for tool in found["thin"])
    assert any(tool["inputSchema"] != {"type": "object"} for tool in found["full"])


def test_a_thin_list_that_is_too_large_and_a_bad_estimate_are_named() -> None:
    """K012"""
    assert complaints([row(40, 1.25), row(1, 0.8)]) == []
    assert "the thin list is above 40% of the full one by made up" in complaints([row(41, 1.0)])
    for estimated in (1.3, 0.7):
        [complaint] = complaints([row(30, estimated)])
        assert "estimate of the thin list is off" in complaint
