"""Tables with colours for a terminal. The only place that imports rich; cells are Text, so markup stays text."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_STYLES = {"good": "green", "bad": "bold red", "warn": "yellow", "name": "cyan", "faint": "dim"}


def draw(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]) -> None:
    """Print the rows; the first column holds names, a cell whose text is in `styles` gets that style."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(Text(column), overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(
            *(
                Text(cell, style=_STYLES.get(styles.get(cell, "name" if index == 0 else ""), ""))
                for index, cell in enumerate(row)
            )
        )
    Console(highlight=False, markup=False, emoji=False, legacy_windows=False).print(table)
