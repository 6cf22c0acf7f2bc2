// Plots of the metrics of the manager.

import { useState } from "preact/hooks";
import { useFetched } from "./api";
import { clock, plural } from "./format";
import { Empty } from "./parts";
import type { Plot, Plots, Series } from "./rows";

export function Metrics() {
  const { value, error } = useFetched<Plots>("plots", {}, "");
  return (
    <>
      <h1>Metrics</h1>
      {error && <p class="problem">{error}</p>}
      {value && !value.enabled && (
        <Empty title="No plots">
          The command was started with <code>--metrics-url none</code>.
        </Empty>
      )}
      {value?.enabled && (
        <>
          <p class="quiet">{value.source ? `The last hour, from ${value.source}. Values are kept while a tab is open.` : value.problem ? "" : "Reading the metrics…"}</p>
          {value.problem && (
            <p class="notes" role="status">
              <b>The metrics of the manager cannot be read.</b> {value.problem}
            </p>
          )}
          <div class="plots">{value.source && value.plots.map((plot) => <PlotView key={plot.name} plot={plot} from={value.from} to={value.to} />)}</div>
        </>
      )}
    </>
  );
}

// The size of a plot in its own units; the browser scales it.
const width = 600;
const height = 160;

const valuesOf = (series: Series[]): number[] => series.flatMap((line) => line.values.filter((value): value is number => value !== null));

function PlotView({ plot, from, to }: { plot: Plot; from: number; to: number }) {
  const series = plot.series ?? [];
  const [at, setAt] = useState<number | null>(null);
  const highest = nice(Math.max(0, ...valuesOf(series)));
  const x = (time: number) => (width * (time - from)) / Math.max(1, to - from);
  const y = (value: number) => height - (height * value) / highest;
  const text = series.map((line) => `${line.label}: ${format(last(line, at), plot.unit)}`).join(", ");
  return (
    <figure class="plot" aria-label={`${plot.title}. ${text || "No values"}`}>
      <figcaption>
        <b>{plot.title}</b>
        <span class="quiet">{at === null ? "" : clock(at)}</span>
      </figcaption>
      {series.length === 0 ? (
        <p class="quiet">No values in the last hour</p>
      ) : (
        <>
          <div class="area">
            <span class="quiet">{format(highest, plot.unit)}</span>
            <svg
              viewBox={`0 0 ${width} ${height}`}
              preserveAspectRatio="none"
              aria-hidden="true"
              onPointerMove={(event) => {
                const box = event.currentTarget.getBoundingClientRect();
                setAt(from + ((to - from) * (event.clientX - box.left)) / Math.max(1, box.width));
              }}
              onPointerLeave={() => setAt(null)}
            >
              <path class="grid" d={`M0 ${height / 2}H${width}`} />
              {at !== null && <path class="grid" d={`M${x(at).toFixed(1)} 0V${height}`} />}
              {series.map((line, i) => (
                <path key={line.label} class={"line-" + i} d={path(line, x, y)} />
              ))}
            </svg>
            <span class="quiet times">
              <span>{clock(from)}</span>
              <span>{clock(to)}</span>
            </span>
          </div>
          <ul class="series">
            {series.map((line, i) => (
              <li key={line.label}>
                <i class={"line-" + i} /> <span>{line.label || "(none)"}</span> <b>{format(last(line, at), plot.unit)}</b>
              </li>
            ))}
            {plot.more ? <li class="quiet">{plural(plot.more, "more line")} with lower values</li> : null}
          </ul>
        </>
      )}
    </figure>
  );
}

// path returns the path of a line, which null interrupts. A single value is shown as a point.
function path(line: Series, x: (time: number) => number, y: (value: number) => number): string {
  let d = "";
  let open = false;
  line.values.forEach((value, i) => {
    if (value === null) {
      open = false;
      return;
    }
    const point = `${x(line.times[i]!).toFixed(1)} ${y(value).toFixed(1)}`;
    d += open ? `L${point}` : `M${point}h0.1`;
    open = true;
  });
  return d;
}

// last returns the last value of a line until a time, or the last of all.
function last(line: Series, at: number | null): number | null {
  for (let i = line.values.length - 1; i >= 0; i--) {
    if (at === null || line.times[i]! <= at) return line.values[i] ?? null;
  }
  return null;
}

// nice returns a round number that is at least n.
function nice(n: number): number {
  if (!(n > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(n));
  return power * ([1, 2, 5, 10].find((step) => step * power >= n) ?? 10);
}

function format(value: number | null, unit = ""): string {
  if (value === null) return "–";
  const digits = value !== 0 && Math.abs(value) < 10 ? 2 : 0;
  return Number(value.toFixed(digits)).toLocaleString("en-US") + (unit && unit !== "/s" ? " " : "") + unit;
}
