"""Pictures of the docs as SVG, which show in light and dark."""

from collections.abc import Iterable
from html import escape

STYLE = """
  text {{ font: 13px system-ui, sans-serif; fill: #1f2328; }} .small {{ font-size: 12px; fill: #59636e; }}
  .axis {{ stroke: #59636e; }} .ground {{ fill: #fff; }}{}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #f0f6fc; }} .small {{ fill: #9198a1; }} .axis {{ stroke: #9198a1; }} .ground {{ fill: #0d1117; }}{}
  }}
"""


def picture(words: str, width: int, height: int, styles: tuple[str, str], parts: Iterable[str]) -> str:
    """Return a picture with a title; `styles` of its own classes, in light and dark."""
    head = f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(words)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {head}>',
        f"<title>{escape(words)}</title><style>{STYLE.format(*styles)}</style>",
        rect("ground", 0, 0, width, height),
    ]
    return "\n".join([*lines, *parts, "</svg>\n"])


def text(x: float, y: float, words: object, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(words))}</text>'


def rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
