"""The measuring itself, in a short form."""

from ksi_daemon.audit import verification
from ksi_daemon.audit.files import Files
from tests.audit.conftest import Open, happening
from tests.audit.figures import measure


async def test_the_figures_can_be_taken() -> None:
    """U06: how fast is for `python -m tests.audit.figures` to say; here only that it is measured."""
    figures = await measure(1_280)
    assert figures["verified"]
    assert figures["rows"] == 1_281
    assert figures["verify_rows_per_s"] > 0


async def test_verification_tells_how_far_it_is(opened: Open, files: Files) -> None:
    """U06."""
    async with opened() as audit:
        await audit.append(happening())
    seen: list[tuple[int, int]] = []
    verification.verify(files, progress=lambda rows, total: seen.append((rows, total)))
    assert seen == [(2, 2)]
