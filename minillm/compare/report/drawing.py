"""A few shapes, drawn twice: as SVG for the page, which is light or dark, and as a picture for W&B."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

FONT = 13  # px
SHARPER = 2  # a picture's pixels for one of the drawing's
SMOOTH = 2  # and how many times finer it is drawn than kept: Pillow's lines have hard edges

# On a light page, on a dark one. The numbered ones are for variants, one after the other.
INKS = {
    "paper": ("#ffffff", "#14171c"),
    "text": ("#1f2328", "#e6e9ee"),
    "quiet": ("#5c6570", "#9aa4b1"),
    "grid": ("#e3e6ea", "#2b3038"),
    "band": ("#eceff3", "#23282f"),
    "0": ("#6b7380", "#a3acb9"),
    "1": ("#2f6fd6", "#74a5ff"),
    "2": ("#d4581c", "#ff9a62"),
    "3": ("#22854d", "#63cd90"),
    "4": ("#9a38b3", "#d38bf0"),
    "5": ("#c22b47", "#ff7d92"),
    "6": ("#0b8693", "#57cfdf"),
    "7": ("#86680f", "#dcbd58"),
    "8": ("#cf4697", "#ff9bd0"),
    "9": ("#5546c4", "#a597ff"),
}
Point = tuple[float, float]


def series_ink(number: int) -> str:
    """Of a variant; the baseline's is grey."""
    return str(number) if number < 10 else str(1 + (number - 1) % 9)


def style() -> str:
    """The inks as CSS variables."""
    light, dark = (";".join(f"--{name}:{inks[i]}" for name, inks in named().items()) for i in (0, 1))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def named() -> dict[str, tuple[str, str]]:
    return {f"ink-{name}": inks for name, inks in INKS.items()}


@dataclass(frozen=True)
class Line:
    """Through points, or a single stroke."""

    points: Sequence[Point]
    ink: str
    width: float = 1.0

    def svg(self) -> str:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)
        return (
            f'<polyline points="{points}" style="fill:none;stroke:var(--ink-{self.ink});stroke-width:{self.width:g};'
            'stroke-linejoin:round"/>'
        )

    def paint(self, draw: "ImageDraw", scale: float) -> None:
        points = [(x * scale, y * scale) for x, y in self.points]
        draw.line(points, INKS[self.ink][0], round(self.width * scale), joint="curve")


@dataclass(frozen=True)
class Box:
    """Filled."""

    x: float
    y: float
    width: float
    height: float
    ink: str

    def svg(self) -> str:
        return (
            f'<rect x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}" '
            f'style="fill:var(--ink-{self.ink})"/>'
        )

    def paint(self, draw: "ImageDraw", scale: float) -> None:
        ends = (self.x, self.y, self.x + self.width, self.y + self.height)
        draw.rectangle([end * scale for end in ends], INKS[self.ink][0])


@dataclass(frozen=True)
class Dot:
    """With what it stands for, which a page shows under the pointer."""

    x: float
    y: float
    ink: str
    title: str
    hollow: bool = False
    radius: float = 3.5

    def svg(self) -> str:
        fill = "paper" if self.hollow else self.ink
        return (
            f'<circle cx="{self.x:.1f}" cy="{self.y:.1f}" r="{self.radius:g}" style="fill:var(--ink-{fill});'
            f'stroke:var(--ink-{self.ink});stroke-width:1.5"><title>{escape(self.title)}</title></circle>'
        )

    def paint(self, draw: "ImageDraw", scale: float) -> None:
        fill = INKS["paper" if self.hollow else self.ink][0]
        center = (self.x * scale, self.y * scale)
        draw.circle(center, self.radius * scale, fill, INKS[self.ink][0], round(1.5 * scale))


@dataclass(frozen=True)
class Text:
    """On its baseline."""

    x: float
    y: float
    text: str
    ink: str = "text"
    anchor: Literal["start", "middle", "end"] = "start"

    def svg(self) -> str:
        return (
            f'<text x="{self.x:.1f}" y="{self.y:.1f}" text-anchor="{self.anchor}" '
            f'style="fill:var(--ink-{self.ink})">{escape(self.text)}</text>'
        )

    def paint(self, draw: "ImageDraw", scale: float) -> None:
        from PIL import ImageFont

        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[self.anchor]
        font = ImageFont.load_default(FONT * scale)
        draw.text((self.x * scale, self.y * scale), self.text, INKS[self.ink][0], font, anchor)


@dataclass(frozen=True)
class Drawing:
    """Shapes, the later ones on top; `label` says in words what they show."""

    label: str
    width: float
    height: float
    shapes: Sequence[Line | Box | Dot | Text]

    def svg(self) -> str:
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.label)}" '
            f'font-size="{FONT}">' + "".join(shape.svg() for shape in self.shapes) + "</svg>"
        )

    def image(self) -> "Image":
        """On white paper."""
        from PIL import Image, ImageDraw

        scale = SHARPER * SMOOTH
        size = (round(self.width * scale), round(self.height * scale))
        image = Image.new("RGB", size, INKS["paper"][0])
        draw = ImageDraw.Draw(image)
        for shape in self.shapes:
            shape.paint(draw, scale)
        return image.reduce(SMOOTH)
