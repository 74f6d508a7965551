// A line over time. The library is fetched when the first chart is shown.

import { useEffect, useRef } from "preact/hooks";
import type uPlot from "uplot";

interface Props {
  label: string;
  times: number[];
  values: number[];
  /** The limit: the axis does not reach beyond it by itself. */
  top: number;
  write: (value: number) => string;
}

const HEIGHT = 96;

export function Chart({ label, times, values, top, write }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    let gone = false;
    let resized: ResizeObserver | undefined;
    void Promise.all([import("uplot"), import("uplot/dist/uPlot.min.css")]).then(([{ default: Plot }]) => {
      if (gone) return;
      const style = getComputedStyle(element);
      const line = style.getPropertyValue("--accent");
      const axis = { stroke: style.getPropertyValue("--muted"), grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      plot.current = new Plot(
        {
          width: element.clientWidth,
          height: HEIGHT,
          legend: { show: false },
          cursor: { y: false, drag: { x: false, y: false } },
          scales: { y: { range: (_, __, high) => [0, Math.max(high * 1.25, top / 1000, 1)] } },
          axes: [
            { ...axis, size: 20, space: 70, grid: { show: false } },
            { ...axis, size: 58, space: 30, values: (_, ticks) => ticks.map(write) },
          ],
          series: [{}, { label, stroke: line, fill: `${line}22`, width: 1.5, points: { show: false } }],
        },
        [times, values],
        element,
      );
      resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
      resized.observe(element);
    });
    return () => {
      gone = true;
      resized?.disconnect();
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [top]);
  useEffect(() => plot.current?.setData([times, values]), [times.at(-1), values.length]);
  const latest = values.at(-1);
  return <div class="chart" ref={place} role="img" aria-label={`${label} over time, now ${latest === undefined ? "unknown" : write(latest)}`} />;
}
