"""Tables of a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """Returns a table; ``rows`` are HTML. The first ``words`` columns are text, the others numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{'' if i < words else ' class=n'}>{cell}</{tag}>" for i, cell in enumerate(cells))

    body = "\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    top = row([escape(h) for h in head], "th")
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
