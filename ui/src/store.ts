// The rows of the server, and the connection that keeps them current.

import { useEffect, useState } from "preact/hooks";
import { closedForLogin, socket as address } from "./address";
import { get, LoginNeeded, proxy } from "./api";
import type { About, Delta, HostRow, KindRow, MachineRow, PoolRow, Row, SetRow, VMRow } from "./rows";

type Link = "connecting" | "open" | "lost";

// Machines of a set, sorted by name. The array is replaced when a machine appears or disappears; its elements are
// replaced when a machine changes.
interface Group {
  byID: Map<string, MachineRow>;
  sorted: MachineRow[] | null;
}

class Store {
  rows = new Map<string, Row>();
  link: Link = "connecting";
  // Milliseconds that the server's clock is ahead of the browser's.
  ahead = 0;
  about: About | null = null;
  // Why the user must log in, or empty.
  login = "";
  // Whether the user logs in with the form instead of at a proxy.
  form = false;
  // Why the server refuses to show the cluster, or empty.
  refused = "";
  // Whether the first rows have arrived.
  loaded = false;

  private kinds = new Map<string, Map<string, Row>>();
  private groups = new Map<string, Group>();
  private listeners = new Set<() => void>();
  private scheduled = false;
  private socket: WebSocket | null = null;

  // Seconds since 1970 by the server's clock.
  now(): number {
    return (Date.now() + this.ahead) / 1000;
  }

  of<T extends Row>(kind: string): T[] {
    return [...((this.kinds.get(kind)?.values() ?? []) as Iterable<T>)];
  }
  get<T extends Row>(id: string): T | undefined {
    return this.rows.get(id) as T | undefined;
  }
  count(kind: string): number {
    return this.kinds.get(kind)?.size ?? 0;
  }
  kind(name: string): KindRow | undefined {
    return this.get<KindRow>("kind/" + name);
  }
  // The pools and sets of machine.sapcloud.io and of Cluster API.
  pools(): PoolRow[] {
    return byName([...this.of<PoolRow>("pool"), ...this.of<PoolRow>("capi-pool")]);
  }
  sets(): SetRow[] {
    return [...this.of<SetRow>("set"), ...this.of<SetRow>("capi-set")];
  }
  vms(): VMRow[] {
    return byName(this.of<VMRow>("vm"));
  }
  hosts(): HostRow[] {
    return byName(this.of<HostRow>("host"));
  }

  // The machines of a set.
  machines(set: SetRow): MachineRow[] {
    const group = this.groups.get(`${familyOf(set)}machine/${set.namespace}/${set.name}`);
    if (!group) return [];
    if (!group.sorted) group.sorted = [...group.byID.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
    return group.sorted;
  }

  apply(delta: Delta): void {
    this.ahead = delta.now - Date.now();
    if (delta.all) {
      this.clear();
      this.loaded = true;
    }
    for (const id of delta.gone ?? []) this.remove(id);
    for (const row of delta.rows ?? []) this.put(row);
    this.changed();
  }

  private put(row: Row): void {
    const before = this.rows.get(row.id);
    this.rows.set(row.id, row);
    let of = this.kinds.get(row.kind);
    if (!of) this.kinds.set(row.kind, (of = new Map()));
    of.set(row.id, row);
    if (!isMachine(row)) return;
    const old = before && groupOf(before);
    const now = groupOf(row);
    if (old !== undefined && old !== now) this.leave(old, row.id);
    let group = this.groups.get(now);
    if (!group) this.groups.set(now, (group = { byID: new Map(), sorted: null }));
    group.byID.set(row.id, row as MachineRow);
    group.sorted = null;
  }

  private remove(id: string): void {
    const row = this.rows.get(id);
    if (!row) return;
    this.rows.delete(id);
    this.kinds.get(row.kind)?.delete(id);
    if (isMachine(row)) this.leave(groupOf(row), id);
  }

  private leave(key: string, id: string): void {
    const group = this.groups.get(key);
    if (!group) return;
    group.byID.delete(id);
    group.sorted = null;
    if (group.byID.size === 0) this.groups.delete(key);
  }

  // changed draws the page again in the next frame.
  changed(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      for (const listener of this.listeners) listener();
    });
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  // begin reads what the server is, and then follows it.
  begin(): void {
    get<About>("about").then(
      (about) => {
        this.about = about;
        this.login = "";
        this.connect();
      },
      (error: Error) => {
        if (error instanceof LoginNeeded) this.askLogin(error.message);
        if (this.login) return;
        this.refused = error instanceof TypeError ? "" : error.message; // fetch throws a TypeError if there is no response
        this.link = "lost";
        this.changed();
        setTimeout(() => this.begin(), 1000);
      },
    );
  }

  // askLogin forgets all objects, because another user may log in.
  askLogin(reason: string, form = true): void {
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.login = reason;
    this.form = form;
    this.refused = "";
    this.link = "connecting";
    this.about = null;
    this.loaded = false;
    this.clear();
    this.changed();
  }

  private clear(): void {
    this.rows.clear();
    this.kinds.clear();
    this.groups.clear();
  }

  // connect follows the server, and begins again after failures.
  private connect(): void {
    const socket = new WebSocket(address("stream"));
    this.socket = socket;
    // The server sends at least an empty message in this time.
    const silence = 60_000;
    let watchdog = 0;
    let received = false;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = window.setTimeout(() => socket.close(), silence);
    };
    socket.onopen = alive;
    socket.onmessage = (message) => {
      if (this.socket !== socket) return;
      alive();
      received = true;
      this.link = "open";
      this.refused = "";
      this.apply(JSON.parse(message.data) as Delta);
    };
    socket.onclose = (closed) => {
      clearTimeout(watchdog);
      if (this.socket !== socket) return; // the user must log in
      const loggedOut = closed.code === closedForLogin;
      if (loggedOut && this.about?.logOut) {
        this.askLogin(closed.reason || "Log in to see the cluster.");
        return;
      }
      this.link = "lost";
      // Browsers do not report why.
      if (!received && !loggedOut) this.refused = "The page cannot open a WebSocket. A proxy in front of it does not pass WebSockets through, or too many tabs are open.";
      this.changed();
      // If a proxy logged the user in, it may have a new token.
      setTimeout(() => this.begin(), received && loggedOut ? 0 : 1000);
    };
  }
}

// familyOf returns the beginning of the kinds of rows of the same API as a row: objects of two APIs can have the same names.
export const familyOf = (row: Row): string => (row.kind.startsWith("capi-") ? "capi-" : "");

const isMachine = (row: Row): boolean => row.kind === "machine" || row.kind === "capi-machine";

const groupOf = (row: Row): string => `${row.kind}/${row.namespace}/${(row as MachineRow).set ?? ""}`;

function byName<T extends Row>(rows: T[]): T[] {
  return rows.sort((a, b) => (a.namespace ?? "").localeCompare(b.namespace ?? "") || a.name.localeCompare(b.name));
}

export const store = new Store();

proxy.askLogin = (reason) => store.askLogin(reason, false);

// useStore draws a component again when rows change.
export function useStore(): Store {
  const [, draw] = useState(0);
  useEffect(() => store.subscribe(() => draw((n) => n + 1)), []);
  return store;
}

// useClock draws a component again every second, for durations.
export function useClock(): number {
  const [, draw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => draw((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return store.now();
}
