"""Pages to keep: each is one HTML file that needs no other, made from a template."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, StrictUndefined


def page_of(template: Path, **values: object) -> str:
    """Return the page that a template makes of values. They are escaped, but for those that the template calls safe."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
