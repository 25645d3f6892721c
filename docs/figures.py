"""Draws `docs/method.svg`, the method in one picture: `python docs/figures.py`."""

from pathlib import Path
from xml.sax.saxutils import escape


PATH = Path(__file__).with_name("method.svg")
INK, GREY, BLUE, ORANGE = "#1f2933", "#5f6b7a", "#2563a8", "#b45309"

# A white card, so that it can be read on a dark page too.
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 450" font-family="Helvetica, Arial, sans-serif">\n'
    "<title>A corpus becomes a context, and a text and the context become a vector</title>\n"
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    f'orient="auto"><path d="M0 0 10 5 0 10z" fill="{GREY}"/></marker></defs>\n'
    '<rect width="900" height="450" rx="10" fill="#ffffff"/>\n'
)


def words(x: int, y: int, text: str, *, size: int = 13, color: str = INK, weight: str = "normal") -> str:
    """One line of centred text."""
    style = f'font-size="{size}" fill="{color}" font-weight="{weight}" text-anchor="middle"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>\n'


def box(x: int, y: int, title: str, *lines: str, color: str = INK, width: int = 185, fill: str = "#f5f7fa") -> str:
    """A box with a title and up to two lines."""
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="72" rx="6" fill="{fill}" stroke="{color}"/>\n'
    middle = x + width // 2
    parts = [words(middle, y + 26, title, size=15, color=color, weight="bold")]
    parts += [words(middle, y + 45 + 16 * number, line, size=12) for number, line in enumerate(lines)]
    return frame + "".join(parts)


def arrow(path: str, *, is_dashed: bool = False) -> str:
    """A path with a tip."""
    dashes = ' stroke-dasharray="5 4"' if is_dashed else ""
    return f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="1.6"{dashes} marker-end="url(#tip)"/>\n'


def draw() -> str:
    """The picture."""
    parts = [
        HEAD,
        '<rect x="225" y="22" width="660" height="122" rx="9" fill="none" stroke="#999" stroke-dasharray="3 3"/>\n',
        words(555, 42, "Context: fitted to the corpus once", color=GREY),
        box(15, 56, "Your corpus", "no labels", width=160),
        box(240, 56, "First stage", "a vector of each", "context document"),
        box(463, 56, "Frequencies", "share of documents p", "with each token", color=BLUE),
        box(685, 56, "Term vectors", "which terms occur", "together here", color=ORANGE),
        box(15, 206, "A text", "query or document", width=160),
        box(240, 206, "Encoder", "or second stage of a", "contextual model"),
        box(463, 206, "Pooling", "mean of its tokens,", "weights a / (a + p)", color=BLUE),
        box(685, 206, "Sum of terms", "term vectors of the text,", "weighted by BM25", color=ORANGE),
        arrow("M175 92H223"),
        arrow("M332 128V204", is_dashed=True),
        words(300, 176, "contextual", size=12, color=GREY) + words(300, 190, "models", size=12, color=GREY),
        arrow("M555 128V204") + arrow("M777 128V204"),
        arrow("M175 242H238") + arrow("M425 242H461"),
        arrow("M95 278V312H725V280"),
        words(330, 330, "its terms: the tokens of the whole text", size=12, color=GREY),
        arrow("M555 278V360") + arrow("M800 278V360"),
        box(463, 362, "Dense part", "384 dimensions", color=BLUE, width=222, fill="#dbeafe"),
        box(685, 362, "Corpus part", "256 dimensions, calibrated", color=ORANGE, fill="#fdebd0"),
        words(240, 394, "One vector, compared by the cosine:", size=15, weight="bold"),
        words(240, 414, "any index takes it", size=13, color=GREY),
        "</svg>\n",
    ]
    return "".join(parts)


if __name__ == "__main__":
    PATH.write_text(draw(), encoding="utf-8")
