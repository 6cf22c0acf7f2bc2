// A table of machines that draws only the visible rows.

import { useEffect, useRef, useState } from "preact/hooks";
import { age, href, phaseClass } from "./format";
import type { MachineRow } from "./rows";
import { useClock } from "./store";

const line = 30;
const margin = 12;

export function MachineTable({ machines }: { machines: MachineRow[] }) {
  const ref = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState({ from: 0, to: 60 });
  const now = useClock();
  useEffect(() => {
    const measure = () => {
      const top = ref.current!.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(-top / line) - margin);
      const to = Math.ceil((innerHeight - top) / line) + margin;
      setRange((before) => (before.from === from && before.to === to ? before : { from, to }));
    };
    measure();
    addEventListener("scroll", measure, { passive: true });
    addEventListener("resize", measure);
    return () => {
      removeEventListener("scroll", measure);
      removeEventListener("resize", measure);
    };
  }, []);
  const from = Math.min(range.from, machines.length);
  const to = Math.max(from, Math.min(range.to, machines.length));
  return (
    <div class="machines" role="table" aria-rowcount={machines.length + 1}>
      <div class="line titles" role="row">
        {["Machine", "Phase", "For", "Node", "Class", "Last operation"].map((title) => (
          <span role="columnheader" key={title} class={title === "For" ? "figures" : undefined}>
            {title}
          </span>
        ))}
      </div>
      <div ref={ref} role="rowgroup" style={{ height: `${machines.length * line}px`, paddingTop: `${from * line}px` }}>
        {machines.slice(from, to).map((machine, i) => (
          <div class="line" role="row" aria-rowindex={from + i + 2} key={machine.id}>
            <span role="cell" class="mono">
              <a href={href(machine.kind, machine.namespace, machine.name)}>{machine.name}</a>
            </span>
            <span role="cell">
              <i class={"dot " + phaseClass(machine.phase)} /> {machine.phase}
            </span>
            <span role="cell" class="figures">
              {machine.since ? age(now - machine.since) : ""}
            </span>
            <span role="cell" class="mono">
              {machine.node ?? ""}
            </span>
            <span role="cell">{machine.class ?? ""}</span>
            <span role="cell" class="quiet">
              {machine.code ? machine.code + ": " : ""}
              {machine.message ?? ""}
            </span>
          </div>
        ))}
      </div>
    </div>
  );
}
