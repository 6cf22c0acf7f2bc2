// The list of pools, and the page of one.

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Actions } from "./action";
import { useFetched } from "./api";
import { age, at, href, number, phaseClass, plural } from "./format";
import { Bounds, Conditions, Empty, Events, Facts, Findings, Timeline, Unread, Yaml } from "./parts";
import type { Detail, MachineRow, PoolRow, Row, SetRow } from "./rows";
import { familyOf, store, useClock, useStore } from "./store";
import { Tiles } from "./tiles";
import { MachineTable } from "./table";

const pages = ["MachineDeployment", "MachineSet", "Machine"];
const capiPages = pages.map((kind) => "Cluster API " + kind);

// A part of a pool: the machines of one set.
interface PoolPart {
  set: SetRow;
  current: boolean;
  machines: MachineRow[];
}

// partsOf returns the sets of a pool that have machines, and the current one, the newest first.
function partsOf(pool: PoolRow, sets: SetRow[]): PoolPart[] {
  const current = new Set((pool.pool.sets ?? []).filter((part) => part.current).map((part) => part.name));
  return sets
    .filter((set) => set.pool === pool.name && set.namespace === pool.namespace && familyOf(set) === familyOf(pool))
    .map((set) => ({ set, current: current.has(set.name), machines: store.machines(set) }))
    .filter((part) => part.current || part.machines.length > 0 || part.set.replicas > 0)
    .sort((a, b) => Number(b.current) - Number(a.current) || Number(b.set.revision ?? 0) - Number(a.set.revision ?? 0));
}

export function status(pool: PoolRow): { text: string; tone: string } {
  if (pool.deleting) return { text: "Deleting", tone: "end" };
  if (pool.paused) return { text: "Paused", tone: "warn" };
  if (pool.outcome === "Complete") return { text: pool.replicas === 0 ? "Scaled to zero" : "Complete", tone: "ok" };
  if (pool.outcome === "Late") return { text: "No progress", tone: "bad" };
  const old = (pool.pool.sets ?? []).some((set) => !set.current && set.exist + set.leaving > 0);
  return { text: old ? `Rolling out revision ${pool.revision || "…"}` : "Progressing", tone: "new" };
}

export function Pools() {
  useStore();
  const pools = store.pools();
  const sets = store.sets();
  const loose = looseMachines(sets);
  return (
    <>
      <h1 class="hidden">Pools</h1>
      <Unread kinds={[...pages, ...(capiAbsent() ? [] : capiPages)]} />
      {pools.map((pool) => (
        <PoolCard key={pool.id} pool={pool} parts={partsOf(pool, sets)} />
      ))}
      {loose.length > 0 && (
        <article class="pool">
          <header>
            <h2>Machines outside of MachineDeployments</h2>
            <p class="numbers">{plural(loose.length, "machine")}</p>
          </header>
          <Tiles machines={loose} label="Machines outside of MachineDeployments" />
        </article>
      )}
      {store.loaded && pools.length === 0 && loose.length === 0 && readable("MachineDeployment") && (
        <Empty title="No pools yet">
          A pool is a MachineDeployment. Create one with <code>kubectl apply</code>, and its machines appear here.
        </Empty>
      )}
      {capiAbsent() && <p class="quiet">This cluster does not have the kinds of Cluster API.</p>}
    </>
  );
}

// capiAbsent reports whether the cluster does not have Cluster API, as most do not.
const capiAbsent = (): boolean => capiPages.every((kind) => store.kind(kind)?.access === "absent");

const readable = (kind: string): boolean => store.kind(kind)?.access === "ok";

// looseMachines returns the machines that do not belong to a deployment.
function looseMachines(sets: SetRow[]): MachineRow[] {
  const key = (row: Row, set: string) => `${familyOf(row)}/${row.namespace}/${set}`;
  const owned = new Set(sets.filter((set) => set.pool && store.get(`${familyOf(set)}pool/${set.namespace}/${set.pool}`)).map((set) => key(set, set.name)));
  return [...store.of<MachineRow>("machine"), ...store.of<MachineRow>("capi-machine")].filter((machine) => !owned.has(key(machine, machine.set ?? "")));
}

function PoolCard({ pool, parts }: { pool: PoolRow; parts: PoolPart[] }) {
  const { text, tone } = status(pool);
  const now = useClock();
  const wait = pool.outcome === "Complete" ? undefined : pool.waits?.[0];
  return (
    <article class="pool" aria-labelledby={pool.id}>
      <header>
        <div>
          <h2 id={pool.id}>
            <a href={href(pool.kind, pool.namespace, pool.name)}>{pool.name}</a>
          </h2>
          <p class="quiet">
            {pool.namespace}
            {pool.cluster ? ` · Cluster API cluster ${pool.cluster}` : pool.class ? ` · class ${pool.class}` : ""}
          </p>
        </div>
        <p class="numbers">
          <Pill tone={tone}>{text}</Pill>
          <Numbers pool={pool} />
        </p>
        <Bounds pool={pool} />
      </header>
      <Parts parts={parts} />
      {wait && (
        <p class="waiting">
          <span class="cause">{wait.cause}</span>
          <span>
            {wait.text}
            {wait.since ? <span class="quiet"> for {age(now - at(wait.since))}</span> : null}
            {(pool.waits?.length ?? 0) > 1 ? (
              <>
                {" "}
                <a href={href(pool.kind, pool.namespace, pool.name)}>and {pool.waits!.length - 1} more</a>
              </>
            ) : null}
          </span>
        </p>
      )}
    </article>
  );
}

function Numbers({ pool }: { pool: PoolRow }) {
  const { available, updated } = pool.pool;
  const desired = pool.pool.wanted;
  const old = (pool.pool.sets ?? []).filter((set) => !set.current).reduce((sum, set) => sum + set.exist + set.leaving, 0);
  return (
    <span>
      <b>{number(available)}</b> of {number(desired)} available
      {updated !== desired || old ? `, ${number(updated)} up to date` : ""}
      {old ? `, ${number(old)} old` : ""}
    </span>
  );
}

function Pill({ tone, children }: { tone: string; children: ComponentChildren }) {
  return <span class={"pill " + tone}>{children}</span>;
}

function Parts({ parts }: { parts: PoolPart[] }) {
  const titles = parts.length > 1;
  return (
    <div class="parts">
      {parts.map((part) => (
        <div key={part.set.id} class={part.current ? "part current" : "part"}>
          {titles && (
            <p class="title">
              <b>{part.current ? "New" : "Old"}</b> revision {part.set.revision ?? "?"} <span class="mono quiet">{part.set.name}</span>
              <span class="quiet">
                {" "}
                {number(part.machines.length)} of {number(part.set.replicas)}
              </span>
            </p>
          )}
          {part.machines.length > 0 ? (
            <Tiles machines={part.machines} label={`Machines of ${part.set.name}`} />
          ) : (
            <p class="quiet">{part.set.replicas === 0 ? "No machines desired" : "No machines yet"}</p>
          )}
        </div>
      ))}
    </div>
  );
}

export function Pool({ kind, namespace, name }: { kind: "pool" | "capi-pool"; namespace: string; name: string }) {
  useStore();
  const capi = kind === "capi-pool";
  const kinds = capi ? capiPages : pages;
  const pool = store.get<PoolRow>(`${kind}/${namespace}/${name}`);
  const { value, error } = useFetched<Detail>(kind, { namespace, name }, pool);
  const [list, setList] = useState(false);
  const [phase, setPhase] = useState("");
  const parts = pool ? partsOf(pool, store.sets()) : [];
  const machines = parts.flatMap((part) => part.machines);
  const shown = phase ? parts.map((part) => ({ ...part, machines: part.machines.filter((machine) => machine.phase === phase) })) : parts;
  const phases = useMemo(() => countPhases(machines), [machines]);
  if (!pool) {
    return (
      <>
        <h1>{name}</h1>
        <Unread kinds={kinds} />
        {store.loaded && readable(kinds[0]!) && (
          <Empty title="This pool does not exist">
            {value?.report.answer ?? "It was deleted, or never existed."} <a href="#/">All pools</a>
          </Empty>
        )}
      </>
    );
  }
  const { text, tone } = status(pool);
  const report = value?.report;
  return (
    <>
      <header class="head">
        <div>
          <p class="crumb">
            <a href="#/">Pools</a> / {pool.namespace}
          </p>
          <h1>{pool.name}</h1>
        </div>
        <Actions row={pool} />
      </header>
      <Unread kinds={kinds} />
      {pool.managed && <p class="notes">The topology of cluster {pool.cluster} determines this pool. Scale or change it there.</p>}
      <div class="summary">
        <p class="numbers">
          <Pill tone={tone}>{text}</Pill>
          <Numbers pool={pool} />
          {pool.deadline ? <Deadline at={pool.deadline} /> : null}
        </p>
        <Bounds pool={pool} />
      </div>
      <Explanation detail={value} error={error} namespace={namespace} />
      <section>
        <header class="bar">
          <h2>Machines</h2>
          <div class="legend" role="group" aria-label="Show a phase only">
            {phases.map(([of, count]) => (
              <button type="button" key={of} aria-pressed={phase === of} onClick={() => setPhase(phase === of ? "" : of)}>
                <i class={"dot " + phaseClass(of)} /> {of} {number(count)}
              </button>
            ))}
          </div>
          <div class="switch" role="group" aria-label="View">
            <button type="button" aria-pressed={!list} onClick={() => setList(false)}>
              Tiles
            </button>
            <button type="button" aria-pressed={list} onClick={() => setList(true)}>
              List
            </button>
          </div>
        </header>
        {list ? <MachineTable machines={shown.flatMap((part) => part.machines)} /> : <Parts parts={shown} />}
      </section>
      {capi ? <Events events={report ? (report.events ?? []) : null} error="" namespace={namespace} link="capi-machine" /> : <Timeline parameters={{ namespace, pool: name }} version={pool} />}
      <section>
        <h2>Details</h2>
        <Facts
          facts={[
            [capi ? "Template" : "Class", pool.class],
            ["Cluster", pool.cluster],
            ["Kubernetes", pool.version],
            ["Strategy", pool.strategy],
            ["Replicas", number(pool.replicas)],
            ["Revision", pool.revision ? String(pool.revision) : ""],
            ["Created", pool.created ? age(store.now() - pool.created) + " ago" : ""],
            ["Verdict", report?.verdict],
          ]}
        />
        <Revisions detail={value} />
        <Conditions detail={value} />
        <Yaml kind={kind} namespace={namespace} name={name} version={pool} />
      </section>
    </>
  );
}

function Deadline({ at: time }: { at: number }) {
  const left = time - useClock();
  return <span class="quiet">{left > 0 ? `must progress within ${age(left)}` : "progress deadline exceeded"}</span>;
}

function countPhases(machines: MachineRow[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const machine of machines) counts.set(machine.phase, (counts.get(machine.phase) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function Revisions({ detail }: { detail: Detail | null }) {
  const now = useClock();
  if (!detail?.revisions?.length) return null;
  return (
    <table class="plain">
      <caption>Revisions</caption>
      <thead>
        <tr>
          <th class="right">Revision</th>
          <th>Set</th>
          <th>Class</th>
          <th>Age</th>
          <th>Change cause</th>
        </tr>
      </thead>
      <tbody>
        {detail.revisions.map((revision) => (
          <tr key={revision.set}>
            <td class="right">
              {revision.number}
              {revision.current ? " (current)" : ""}
            </td>
            <td class="mono">{revision.set}</td>
            <td>{revision.class}</td>
            <td>{age(now - at(revision.created))}</td>
            <td>{revision.cause ?? ""}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

// Explanation shows what "millwright explain" shows: the conclusion, its reasons, what happens next, and advice.
export function Explanation({ detail, error, namespace }: { detail: Detail | null; error: string; namespace: string }) {
  const now = useClock();
  const report = detail?.report;
  if (!report) return error ? <p class="problem">{error}</p> : <p class="explanation quiet">Reading the explanation…</p>;
  // Findings are shown with their remedies.
  const advice = (report.advice ?? []).filter((text) => !report.why?.some((finding) => finding.remedy === text));
  return (
    <section class={"explanation " + tones[report.verdict]} aria-label="Explanation">
      <h2 class="hidden">Explanation</h2>
      <p class="conclusion">{report.answer}</p>
      {report.why && report.why.length > 0 && <Findings findings={report.why} namespace={namespace} />}
      {report.replaced && report.replaced.length > 0 && (
        <>
          <h3>Why it was replaced</h3>
          <Findings findings={report.replaced} namespace={namespace} />
        </>
      )}
      <div class="columns">
        {report.next && report.next.length > 0 && (
          <div>
            <h3>What happens next</h3>
            <ul>
              {report.next.map((step, i) => (
                <li key={i}>
                  {step.text}
                  {step.at ? <span class="quiet">{` ${step.earliest ? "at the earliest " : ""}${at(step.at) > now ? "in " + age(at(step.at) - now) : age(now - at(step.at)) + " ago"}`}</span> : null}
                </li>
              ))}
            </ul>
          </div>
        )}
        {advice.length > 0 && (
          <div>
            <h3>What you can do</h3>
            <ul>
              {advice.map((advice, i) => (
                <li key={i}>{advice}</li>
              ))}
            </ul>
          </div>
        )}
      </div>
      {report.console && report.console.length > 0 && (
        <>
          <h3>Last lines of the console</h3>
          <pre class="lines">{report.console.join("\n")}</pre>
        </>
      )}
      {report.unread && report.unread.length > 0 && (
        <details>
          <summary>{plural(report.unread.length, "object")} could not be read</summary>
          <ul>
            {report.unread.map((text, i) => (
              <li key={i}>{text}</li>
            ))}
          </ul>
        </details>
      )}
      {error && <p class="problem">{error}</p>}
    </section>
  );
}

const tones: Record<string, string> = { Healthy: "ok", NotRunning: "bad", Incomplete: "warn", Deleting: "end", Unknown: "warn" };
