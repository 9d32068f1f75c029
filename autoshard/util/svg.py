"""Pictures as SVG: boxes, lines and words, which browsers, notebooks and documents show at any size.

Names of tensors and devices come from other people's programs: words go in as text, never as markup.
"""

from __future__ import annotations

from xml.etree import ElementTree as etree

CHARACTER = 7.3
"""Width of a character at `SIZE`, in the picture's units, for a monospaced font: rounded up, so that words fit."""
SIZE = 12
"""Height of letters."""
_STYLE = (
    f"text {{ font: {SIZE}px ui-monospace, Menlo, Consolas, monospace; fill: #1c1e21 }} "
    ".faint { fill: #6a7178 } "
    "@media (prefers-color-scheme: dark) { text { fill: #e6e8ea } .faint { fill: #9aa1a8 } .ink { fill: #1c1e21 } }"
)


class Svg:
    """A picture in the making; it grows with what is drawn.

    >>> picture = Svg()
    >>> picture.box(0, 0, 40, 20, fill="#ddd")
    >>> picture.words(4, 14, "a < b")
    >>> text = picture.text()
    >>> "a &lt; b" in text, text.startswith("<svg")
    (True, True)
    """

    def __init__(self) -> None:
        self.root = etree.Element("svg", xmlns="http://www.w3.org/2000/svg")
        etree.SubElement(self.root, "style").text = _STYLE
        self.width = self.height = 0.0

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str = "#8a9199",
        title: str = "",
    ) -> None:
        """A rectangle; `title` shows where a pointer rests on it."""
        self._grow(x + width, y + height)
        made = etree.SubElement(
            self.root, "rect", x=_number(x), y=_number(y), width=_number(width), height=_number(height),
            rx="3", fill=fill, stroke=stroke,
        )  # fmt: skip
        if title:
            etree.SubElement(made, "title").text = title

    def line(self, x: float, y: float, to_x: float, to_y: float, *, stroke: str = "#8a9199", width: float = 1) -> None:
        """A straight line."""
        self._grow(max(x, to_x), max(y, to_y))
        ends = {"x1": _number(x), "y1": _number(y), "x2": _number(to_x), "y2": _number(to_y)}
        etree.SubElement(self.root, "line", {**ends, "stroke": stroke, "stroke-width": _number(width)})

    def words(self, x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> None:
        """A line of text whose base line is at y; `anchor` as in SVG, `kind` "faint", "ink" (on a light box) or ""."""
        wide = len(text) * CHARACTER
        self._grow(x + {"start": wide, "middle": wide / 2, "end": 0.0}[anchor], y + 4)
        made = etree.SubElement(self.root, "text", {"text-anchor": anchor}, x=_number(x), y=_number(y))
        if kind:
            made.set("class", kind)
        made.text = text

    def text(self) -> str:
        """The picture, as a document of its own or inside of a page."""
        width, height = _number(self.width + 1), _number(self.height + 1)
        self.root.attrib.update(viewBox=f"0 0 {width} {height}", width=width, height=height)
        etree.indent(self.root)
        return etree.tostring(self.root, encoding="unicode") + "\n"

    def _grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def colour(place: int, count: int) -> str:
    """One of `count` colours that are told apart, light enough to write on.

    >>> colour(0, 4) == colour(0, 4), colour(0, 4) != colour(1, 4)
    (True, True)
    """
    hue = round(360 * place / max(count, 1) + 205) % 360
    return f"hsl({hue}, 62%, {78 if place % 2 else 70}%)"
