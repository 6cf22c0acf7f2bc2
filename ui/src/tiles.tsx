// Tiles: one element for each machine, in blocks of whole lines. The browser skips blocks that are not visible, and a block
// is rendered again only if one of its machines changed. So thousands of machines scroll without work in script.

import { Component } from "preact";
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { age, href, phaseClass } from "./format";
import type { MachineRow } from "./rows";
import { store } from "./store";

// Up to this number, tiles are cards with names.
const cards = 24;
// Sizes in pixels with the gap, as in style.css.
const tile = { small: 17, card: 174 };
const height = { small: 17, card: 46 };
const lines = 8;

export function Tiles({ machines, label }: { machines: MachineRow[]; label: string }) {
  const large = machines.length <= cards;
  const ref = useRef<HTMLDivElement>(null);
  const [columns, setColumns] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current!;
    const measure = () => setColumns(Math.max(1, Math.floor((element.clientWidth + 3) / (large ? tile.card : tile.small))));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [large]);

  const size = Math.max(1, columns) * lines;
  const blocks: JSX.Element[] = [];
  for (let from = 0; columns > 0 && from < machines.length; from += size) {
    blocks.push(<Block key={from} machines={machines.slice(from, from + size)} large={large} columns={columns} first={from === 0} />);
  }
  return (
    <div
      ref={ref}
      class={large ? "tiles cards" : "tiles"}
      role="group"
      aria-label={label}
      onKeyDown={(event) => move(event, columns)}
      onMouseOver={(event) => hint.show(event.target as Element)}
      onMouseLeave={() => hint.hide()}
      onFocusIn={(event) => hint.show(event.target as Element)}
      onFocusOut={() => hint.hide()}
    >
      {blocks}
    </div>
  );
}

// move moves the focus by the arrow keys.
function move(event: KeyboardEvent, columns: number): void {
  const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const step = steps[event.key];
  if (step === undefined) return;
  const all = [...(event.currentTarget as Element).querySelectorAll<HTMLElement>("a")];
  const next = all[all.indexOf(document.activeElement as HTMLElement) + step];
  if (next) {
    next.focus();
    event.preventDefault();
  }
}

interface BlockProps {
  machines: MachineRow[];
  large: boolean;
  columns: number;
  first: boolean;
}

class Block extends Component<BlockProps> {
  shouldComponentUpdate(next: BlockProps): boolean {
    const now = this.props;
    return (
      next.large !== now.large ||
      next.columns !== now.columns ||
      next.machines.length !== now.machines.length ||
      next.machines.some((machine, i) => machine !== now.machines[i])
    );
  }

  render({ machines, large, columns, first }: BlockProps) {
    const rows = Math.ceil(machines.length / columns);
    return (
      <div
        class="block"
        style={{ gridTemplateColumns: `repeat(${columns}, ${large ? "minmax(0, 1fr)" : "14px"})`, containIntrinsicSize: `auto ${rows * (large ? height.card : height.small)}px` }}
      >
        {machines.map((machine, i) => (
          <a
            key={machine.id}
            href={href(machine.kind, machine.namespace, machine.name)}
            class={`tile ${phaseClass(machine.phase)}${machine.preserved ? " kept" : ""}${machine.failed && machine.phase !== "Failed" ? " trouble" : ""}`}
            data-id={machine.id}
            // Tab leads to the first tile, and the arrow keys lead from there.
            tabIndex={first && i === 0 ? 0 : -1}
            aria-label={large ? undefined : `${machine.name}: ${machine.phase}`}
          >
            {large && (
              <>
                <span class="name">{machine.name}</span>
                <span class="state">
                  {machine.phase}
                  {machine.code ? " · " + machine.code : ""}
                </span>
              </>
            )}
          </a>
        ))}
      </div>
    );
  }
}

// The hint shows the machine under the pointer. One element serves all tiles.
class Hint {
  set: ((id: string, box: DOMRect | null) => void) | null = null;
  show(target: Element): void {
    const of = target.closest<HTMLElement>("[data-id]");
    if (of) this.set?.(of.dataset.id!, of.getBoundingClientRect());
    else this.hide();
  }
  hide(): void {
    this.set?.("", null);
  }
}
export const hint = new Hint();

export function HintView() {
  const [shown, setShown] = useState<{ id: string; box: DOMRect } | null>(null);
  useEffect(() => {
    hint.set = (id, box) => setShown((before) => (box ? { id, box } : before ? null : before));
    const hide = () => hint.hide();
    addEventListener("scroll", hide, { passive: true });
    addEventListener("hashchange", hide);
    return () => {
      hint.set = null;
      removeEventListener("scroll", hide);
      removeEventListener("hashchange", hide);
    };
  }, []);
  const machine = shown && store.get<MachineRow>(shown.id);
  if (!machine) return null;
  const { box } = shown;
  const below = box.bottom < innerHeight - 120;
  return (
    <div
      class="hint"
      aria-hidden="true"
      style={{ left: `${Math.max(8, Math.min(box.left, innerWidth - 348))}px`, top: below ? `${box.bottom + 6}px` : "auto", bottom: below ? "auto" : `${innerHeight - box.top + 6}px` }}
    >
      <b>{machine.name}</b>
      <span>
        {machine.phase}
        {machine.since ? ` for ${age(store.now() - machine.since)}` : ""}
        {machine.node ? ` · node ${machine.node}` : ""}
        {machine.preserved ? " · preserved" : ""}
      </span>
      {machine.message && machine.phase !== "Running" && <span class="quiet">{machine.message}</span>}
    </div>
  );
}
