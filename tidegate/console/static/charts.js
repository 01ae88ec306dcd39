// Draws the charts of a page with uPlot from its element `chart-data`. All charts of a page share the cursor.
(() => {
  "use strict";
  const HEIGHT = 180;
  const drawn = new Map();

  const data = () => {
    const element = document.getElementById("chart-data");
    return element ? JSON.parse(element.textContent) : [];
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const columns = (chart) => [chart.at, ...chart.series.map((series) => series.values)];

  const marks = (of) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const mark of of()) {
      const x = Math.round(plot.valToPos(mark.at, "x", true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour("--mark");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash(mark.operator ? [2, 4] : []);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };

  const clock = (at, end) => new Date(at * 1e3).toISOString().slice(11, end);

  const options = (chart, width, latest) => ({
    width,
    height: HEIGHT,
    tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
    cursor: { sync: { key: "charts" }, drag: { x: false, y: false } },
    legend: { live: true, markers: { dash: (_plot, place) => (chart.series[place - 1]?.dash.length ? "dashed" : "solid") } },
    scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      {
        stroke: colour("--ink-soft"),
        grid: { stroke: colour("--line"), width: 1 },
        ticks: { show: false },
        size: 28,
        values: (_plot, times, _axis, _space, step) => times.map((at) => clock(at, step < 60 ? 19 : 16)),
      },
      {
        stroke: colour("--ink-soft"),
        grid: { stroke: colour("--line"), width: 1 },
        ticks: { show: false },
        size: 56,
        space: 26,
        values: (_plot, values) => values.map((value) => value.toLocaleString("en", { notation: "compact" })),
        incrs: chart.unit === "slots" ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] : undefined,
      },
    ],
    series: [
      { label: "time", value: (_plot, at) => (at === null ? "" : clock(at, 19)) },
      ...chart.series.map((series, place) => ({
        label: series.label,
        stroke: colour(["--first", "--second", "--third"][place]),
        width: 2,
        dash: series.dash,
        spanGaps: false,
        points: { show: false },
        paths: series.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        value: (_plot, value, _place, index) => {
          if (index === null) return "";
          return value === null ? "unknown" : value.toLocaleString("en", { maximumFractionDigits: 1 });
        },
      })),
    ],
    hooks: { drawAxes: [marks(() => latest.get(chart.name).marks)] },
  });

  const draw = () => {
    const charts = data();
    const latest = new Map(charts.map((chart) => [chart.name, chart]));
    for (const chart of charts) {
      const place = document.querySelector('[data-chart="' + chart.name + '"]');
      if (!place) continue;
      const known = drawn.get(place);
      if (known) {
        for (const [name, newer] of latest) known.latest.set(name, newer);
        known.plot.setData(columns(chart));
      } else if (chart.at.length) {
        const plot = new uPlot(options(chart, place.clientWidth, latest), columns(chart), place);
        drawn.set(place, { plot, latest });
      }
    }
  };

  const again = () => {
    for (const { plot } of drawn.values()) plot.destroy();
    drawn.clear();
    draw();
  };

  draw();
  document.addEventListener("tidegate:refreshed", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let resizing;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      for (const [place, { plot }] of drawn) plot.setSize({ width: place.clientWidth, height: HEIGHT });
    }, 100);
  });
})();
