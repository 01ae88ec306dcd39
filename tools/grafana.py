"""Panels and dashboards as Grafana reads them, made with its own Foundation SDK, whose types come from its schema."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Literal

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    FieldTextAlignment,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DashboardLinkType, DataSourceRef
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its title, its queries with their legends, its unit."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Literal["lines", "stat", "states", "table"] = "lines"
    width: int = 8


def each(title: str, expr: str, legend: str, unit: str = "short", *, width: int = 8) -> Panel:
    """Return a panel of lines of one query."""
    return Panel(title, ((expr, legend),), unit, width=width)


def number(title: str, expr: str, unit: str = "short") -> Panel:
    """Return a panel of one number."""
    return Panel(title, ((expr, ""),), unit, "stat", width=4)


def board(name: str, title: str, rows: dict[str, tuple[Panel, ...]]) -> dashboard.Dashboard:
    """Return a dashboard of rows of panels, each row under its title."""
    others = dashboard.DashboardLink("Tidegate").type(DashboardLinkType.DASHBOARDS)
    made = (
        dashboard.Dashboard(title)
        .uid(f"tidegate-{name}")
        .tags(["tidegate"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .readonly()
        .link(others.tags(["tidegate"]).keep_time(keep_time=True))
    )
    ids = count(1)
    for row, panels in rows.items():
        made = made.with_row(dashboard.Row(row).id(next(ids)))
        for panel in panels:
            made = made.with_panel(_panel(panel).id(next(ids)))
    return made


ONE = dashboard.DashboardLink("This job").url("/d/tidegate-job?var-job_id=${__data.fields.job_id}")

_Built = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel


def _panel(panel: Panel) -> _Built:
    built: _Built
    legend = (
        common.VizLegendOptions()
        .show_legend(show_legend=True)
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
    )
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    if panel.kind == "stat":
        built = stat.Panel().graph_mode(BigValueGraphMode.AREA).height(4)
    elif panel.kind == "states":
        built = statetimeline.Panel().height(6).fill_opacity(60).legend(legend).tooltip(tooltip)
        built = built.show_value(VisibilityMode.AUTO).row_height(0.9)
    elif panel.kind == "table":
        built = table.Panel().height(8).data_links([ONE]).align(FieldTextAlignment.AUTO)
        built = built.inspect(inspect=False).show_header(show_header=True).frame_index(0)
    else:
        built = timeseries.Panel().height(8).fill_opacity(8).min(0).legend(legend).tooltip(tooltip)
    built = built.title(panel.title).unit(panel.unit).span(panel.width).datasource(SOURCE)
    for place, (expr, legend_format) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expr).legend_format(legend_format).ref_id(chr(ord("A") + place))
        if panel.kind == "table":
            query = query.instant().format(PromQueryFormat.TABLE)
        built = built.with_target(query)
    return built
