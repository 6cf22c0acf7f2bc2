// Search finds objects of all kinds by name, node, host or address.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { href } from "./format";
import type { HostRow, MachineRow, PoolRow, Row, VMRow } from "./rows";
import { store } from "./store";

const most = 12;
const titles: Record<string, string> = { pool: "Pool", machine: "Machine", "capi-pool": "Cluster API pool", "capi-machine": "Cluster API machine", vm: "Virtual machine", host: "Host" };

function textsOf(row: Row): (string | undefined)[] {
  switch (row.kind) {
    case "pool":
    case "capi-pool":
      return [row.name, (row as PoolRow).class, (row as PoolRow).cluster];
    case "machine":
    case "capi-machine":
      return [row.name, (row as MachineRow).node, (row as MachineRow).providerID, (row as MachineRow).phase];
    case "vm":
      return [row.name, (row as VMRow).host, (row as VMRow).uuid, ...((row as VMRow).addresses ?? [])];
    case "host":
      return [(row as HostRow).name];
  }
  return [];
}

function find(text: string): Row[] {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word);
  if (words.length === 0) return [];
  const found: Row[] = [];
  for (const kind of ["pool", "capi-pool", "host", "vm", "machine", "capi-machine"]) {
    for (const row of store.of(kind)) {
      const texts = textsOf(row);
      if (words.every((word) => texts.some((of) => of?.toLowerCase().includes(word)))) found.push(row);
      if (found.length >= most) return found;
    }
  }
  return found;
}

export function Search() {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const [open, setOpen] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const found = useMemo(() => find(text), [text, open]);

  useEffect(() => {
    const slash = (event: KeyboardEvent) => {
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === "/" && !typing && !document.querySelector("dialog[open]")) {
        event.preventDefault();
        input.current!.focus();
        input.current!.select();
      }
    };
    const close = () => setOpen(false);
    addEventListener("keydown", slash);
    addEventListener("hashchange", close);
    return () => {
      removeEventListener("keydown", slash);
      removeEventListener("hashchange", close);
    };
  }, []);

  const go = (row: Row) => {
    location.hash = href(row.kind, row.namespace, row.name).slice(1);
    setOpen(false);
    input.current!.blur();
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setChosen(Math.min(chosen + 1, found.length - 1));
    else if (event.key === "ArrowUp") setChosen(Math.max(chosen - 1, 0));
    else if (event.key === "Enter" && found[chosen]) go(found[chosen]!);
    else if (event.key === "Escape") {
      setOpen(false);
      input.current!.blur();
    } else return;
    event.preventDefault();
  };
  const shown = open && text.trim() !== "";
  return (
    <div class="search" role="search">
      <input
        ref={input}
        type="text"
        placeholder="Search  /"
        aria-label="Search pools, machines, virtual machines and hosts"
        role="combobox"
        aria-expanded={shown}
        aria-controls="found"
        aria-activedescendant={shown && found[chosen] ? "found-" + chosen : undefined}
        autocomplete="off"
        spellcheck={false}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setChosen(0);
          setOpen(true);
        }}
        onFocus={() => setOpen(true)}
        onBlur={() => setOpen(false)}
        onKeyDown={key}
      />
      <ul id="found" role="listbox" aria-label="Results" hidden={!shown}>
        {found.map((row, i) => (
          <li
            key={row.id}
            id={"found-" + i}
            role="option"
            aria-selected={i === chosen}
            onMouseDown={(event) => {
              event.preventDefault();
              go(row);
            }}
          >
            <span class="mono">{row.name}</span>
            <span class="quiet">
              {titles[row.kind]} {row.namespace ?? ""}
            </span>
          </li>
        ))}
        {shown && found.length === 0 && <li class="quiet">Nothing found</li>}
      </ul>
    </div>
  );
}
