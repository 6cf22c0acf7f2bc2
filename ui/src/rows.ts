// The types of the server's messages. internal/ui/rows.go, pools.go and detail.go describe the fields.

export interface Row {
  kind: string;
  id: string;
  namespace?: string;
  name: string;
  created?: number;
  deleting?: number;
}

export interface MachineRow extends Row {
  phase: string;
  since?: number;
  set?: string;
  node?: string;
  class?: string;
  providerID?: string;
  version?: string;
  code?: string;
  message?: string;
  failed?: boolean;
  preserved?: number;
}

export interface SetRow extends Row {
  pool?: string;
  revision?: string;
  replicas: number;
}

export interface Finding {
  cause: string;
  object?: string;
  code?: string;
  text: string;
  since?: string;
  remedy?: string;
}

export interface Counts {
  wanted: number;
  exist: number;
  ready: number;
  available: number;
  leaving: number;
  preserved?: number;
  excess?: number;
}

export interface Part extends Counts {
  name: string;
  revision: string;
  current?: boolean;
  phases?: Record<string, number>;
}

export interface PoolRow extends Row {
  class?: string;
  strategy: string;
  paused?: boolean;
  replicas: number;
  outcome: "Progressing" | "Complete" | "Late";
  observed: boolean;
  revision: number;
  pool: Counts & { updated: number; sets?: Part[] };
  most: number;
  least: number;
  deadline?: number;
  waits?: Finding[];
  classes?: string[];
  cluster?: string;
  version?: string;
  managed?: boolean;
}

export interface Condition {
  status: string;
  reason?: string;
  message?: string;
  since?: number;
}

export interface Migration {
  phase: string;
  source?: string;
  target?: string;
  reason?: string;
  message?: string;
  done?: number;
  total?: number;
  start?: number;
  end?: number;
  downtime?: number;
}

export interface VMRow extends Row {
  phase: string;
  host?: string;
  addresses?: string[];
  uuid?: string;
  pod?: string;
  cpus?: number;
  memory?: string;
  ready?: Condition;
  migratable?: Condition;
  restart?: Condition;
  lease?: string;
  disks?: string[];
  migration?: Migration;
}

export interface HostRow extends Row {
  ready: boolean;
  cordoned?: boolean;
  message?: string;
  cpus?: string;
  memory?: number;
  pods?: string;
}

export interface KindRow extends Row {
  access: "loading" | "ok" | "forbidden" | "absent" | "lost";
  namespace?: string;
  message?: string;
}

export interface Delta {
  all?: boolean;
  rows?: Row[];
  gone?: string[];
  now: number;
}

export interface Event {
  at: string;
  type: string;
  object: string;
  reason: string;
  text: string;
  count: number;
}

export interface Report {
  verdict: string;
  answer: string;
  since?: string;
  identity: Record<string, string>;
  why?: Finding[];
  replaced?: Finding[];
  next?: { text: string; at?: string; earliest?: boolean }[];
  advice?: string[];
  console?: string[];
  events?: Event[];
  unread?: string[];
}

export interface Detail {
  report: Report;
  life?: { what: string; at: string }[];
  node?: {
    name: string;
    version?: string;
    os?: string;
    cordoned?: boolean;
    conditions?: (Condition & { type: string })[];
    taints?: string[];
  };
  vm?: string;
  operation?: { type: string; state: string; code?: string; text: string; at?: string };
  pods?: {
    namespace: string;
    name: string;
    terminating?: string;
    budgets?: { name: string; allowed: number; healthy: number; desired: number }[];
  }[];
  conditions?: { object: string; states?: (Condition & { type: string })[] }[];
  infrastructure?: string;
  driver?: string;
  revisions?: { number: number; set: string; class: string; created: string; cause?: string; current?: boolean }[];
}

export interface Plots {
  enabled: boolean;
  source?: string;
  problem?: string;
  from: number;
  to: number;
  plots: Plot[];
}

export interface Plot {
  name: string;
  title: string;
  unit?: string;
  series?: Series[];
  more?: number;
}

// Series has one time for each value. A value that is null interrupts the line.
export interface Series {
  label: string;
  times: number[];
  values: (number | null)[];
}

export interface Action {
  name: string;
  kind: string;
  title: string;
  effect: string;
  input?: "replicas" | "revision" | "host";
  interrupts?: boolean;
}

export interface About {
  version: string;
  cluster: string;
  context?: string;
  user?: string;
  logOut?: boolean;
  console: boolean;
  actions: Action[];
}
