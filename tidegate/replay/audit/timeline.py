"""A job's timeline as an inline SVG: its size over time, its commands, what operators asked for, and what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from tidegate.replay.audit.history import CommandTaken, JobHistory
from tidegate.replay.audit.run import AuditFinding

WIDTH, HEIGHT = 960, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 950, 34, 150
"""The frame of the size's line, in pixels; marks stand above it, times below."""
GOOD = ("verified",)


@dataclass(frozen=True, slots=True)
class _Scale:
    first: float
    last: float
    most: int

    def x(self, at: datetime) -> float:
        share = (at.timestamp() - self.first) / max(1.0, self.last - self.first)
        return LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, share))

    def y(self, size: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * size / max(1, self.most)


def timeline(history: JobHistory, found: Sequence[AuditFinding]) -> str:
    """Return the timeline of one job; `found` are its findings."""
    sizes = [size for _, size in history.sizes]
    ordered = [command.after for command in history.commands]
    scale = _Scale(history.first_at.timestamp(), history.last_at.timestamp(), max([1, *sizes, *ordered]))
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Timeline of {escape(history.job)}">',
            *_axes(history, scale),
            *(_span(command, scale) for command in history.commands),
            _line(history, scale),
            *(
                _mark(scale.x(spec.at), 12, "asked", f"version {spec.version} by {spec.who}: {spec.why}")
                for spec in history.specs
                if spec.at.timestamp() >= scale.first
            ),
            *(_mark(scale.x(each.at), 26, "found", each.found) for each in found if each.at is not None),
            "</svg>",
        ]
    )


def _axes(history: JobHistory, scale: _Scale) -> Iterator[str]:
    step = max(1, -(-scale.most // 4))
    for size in range(0, scale.most + 1, step):
        y = scale.y(size)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{size}</text>'
    ends = ((LEFT, "start", history.first_at), (RIGHT, "end", history.last_at))
    for x, anchor, at in ends:
        yield f'<text x="{x}" y="{BOTTOM + 20}" text-anchor="{anchor}">{at:%Y-%m-%d %H:%M:%S} UTC</text>'
    yield f'<text x="{LEFT - 8}" y="{TOP - 16}" text-anchor="end">slots</text>'


def _line(history: JobHistory, scale: _Scale) -> str:
    path = ""
    for at, size in history.sizes:
        x, y = scale.x(at), scale.y(size)
        path += f"M{x:.1f} {y:.1f}" if not path else f"H{x:.1f}V{y:.1f}"
    return f'<path class="size" d="{path}H{RIGHT}"/>' if path else ""


def _span(command: CommandTaken, scale: _Scale) -> str:
    """Return a command as a band from its order to its end."""
    x = scale.x(command.at)
    width = max(2.0, scale.x(command.ended_at or command.at) - x)
    kind = "good" if command.outcome.startswith(GOOD) else "bad"
    said = escape(f"{command.kind} {command.before} -> {command.after}: {command.outcome}")
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{BOTTOM - TOP}">'
        f"<title>{said}</title></rect>"
    )


def _mark(x: float, y: float, kind: str, said: str) -> str:
    return f'<path class="{kind}" d="M{x:.1f} {y + 7}l-5 -9h10z"><title>{escape(said)}</title></path>'
