// Parts that several pages use.

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { useFetched } from "./api";
import { age, at, clock, href, number } from "./format";
import type { Condition, Detail, Event, Finding, PoolRow } from "./rows";
import { store, useClock } from "./store";

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      <p>{children}</p>
    </div>
  );
}

// Unread shows which kinds of a page cannot be read, and why.
export function Unread({ kinds }: { kinds: string[] }) {
  const notes = kinds.map((name) => store.kind(name)).filter((kind) => kind && kind.access !== "ok" && kind.access !== "loading");
  if (notes.length === 0) return null;
  return (
    <ul class="notes" role="status">
      {notes.map((kind) => (
        <li key={kind!.name} class={kind!.access}>
          {kind!.access === "forbidden" && (
            <>
              <b>You have no permission to list {kind!.name}s.</b> {kind!.message}
            </>
          )}
          {kind!.access === "absent" && <>This cluster does not have the kind {kind!.name}.</>}
          {kind!.access === "lost" && (
            <>
              <b>{kind!.name}s may be out of date.</b> {kind!.message}
            </>
          )}
        </li>
      ))}
    </ul>
  );
}

export function Findings({ findings, namespace }: { findings: Finding[]; namespace?: string }) {
  const now = useClock();
  return (
    <ol class="findings">
      {findings.map((finding, i) => (
        <li key={i}>
          <span class="cause">{finding.cause}</span>
          <div>
            <p>
              <Linked text={finding.text} object={finding.object} namespace={namespace} />
              {finding.code ? <span class="code"> {finding.code}</span> : null}
              {finding.since ? <span class="quiet"> for {age(now - at(finding.since))}</span> : null}
            </p>
            {finding.remedy ? <p class="remedy">{finding.remedy}</p> : null}
          </div>
        </li>
      ))}
    </ol>
  );
}

// Linked shows a text in which the name of a machine is a link.
function Linked({ text, object, namespace, link = "machine" }: { text: string; object?: string; namespace?: string; link?: string }) {
  const name = object?.startsWith("Machine ") ? object.slice("Machine ".length) : "";
  const from = name ? text.indexOf(name) : -1;
  if (from < 0) {
    return (
      <>
        {object && !text.includes(object) ? <b>{object}: </b> : null}
        {text}
      </>
    );
  }
  return (
    <>
      {text.slice(0, from)}
      <a href={href(link, namespace, name)}>{name}</a>
      {text.slice(from + name.length)}
    </>
  );
}

// Bounds shows how many machines are available and exist, between the minimum and the maximum of a rollout.
export function Bounds({ pool }: { pool: PoolRow }) {
  const { exist, available, leaving, updated } = pool.pool;
  const desired = pool.pool.wanted;
  const total = exist + leaving;
  const scale = Math.max(pool.most, total, 1);
  const part = (n: number) => `${(100 * n) / scale}%`;
  // Whether there is space for two labels.
  const apart = pool.least > 0 && pool.least / scale < 0.75;
  const text = `${number(available)} of ${number(desired)} available, ${number(updated)} up to date; at least ${number(pool.least)} must be available, and at most ${number(pool.most)} may exist`;
  return (
    <div class="bounds" role="img" aria-label={text} title={text}>
      <div class="track">
        <div class="total" style={{ width: part(total) }} />
        <div class="available" style={{ width: part(available) }} />
        <i class="least" style={{ left: part(pool.least) }} />
        <i class="desired" style={{ left: part(desired) }} />
      </div>
      <div class="scale" aria-hidden="true">
        {apart && <span style={{ left: part(pool.least) }}>min {number(pool.least)}</span>}
        <span class="end">
          {apart ? "" : `min ${number(pool.least)} · `}max {number(pool.most)}
        </span>
      </div>
    </div>
  );
}

// Timeline shows the events of a namespace, pool or machine.
export function Timeline({ parameters, version }: { parameters: Record<string, string>; version: unknown }) {
  const { value, error } = useFetched<Event[]>("events", parameters, version);
  const kind = store.kind("Event");
  if (kind && (kind.access === "forbidden" || kind.access === "absent")) return <Unread kinds={["Event"]} />;
  return <Events events={value} error={error} namespace={parameters.namespace} link="machine" />;
}

// Events shows the events of the last hour: a bar for each minute, and a list. link is the kind of page of a machine.
export function Events({ events: value, error, namespace, link }: { events: Event[] | null; error: string; namespace?: string; link: string }) {
  const [warnings, setWarnings] = useState(false);
  const now = useClock();
  const minute = Math.floor(now / 60);
  const bars = useMemo(() => minutes(value ?? [], now), [value, minute]);
  const listed = (value ?? []).filter((event) => !warnings || event.type === "Warning");
  const highest = Math.max(1, ...bars.map((bar) => bar.all));
  return (
    <section class="timeline" aria-label="Events">
      <header>
        <h2>Last hour</h2>
        <label class="check">
          <input type="checkbox" checked={warnings} onChange={(event) => setWarnings(event.currentTarget.checked)} /> Warnings only
        </label>
      </header>
      <div class="bars" role="img" aria-label={`${bars.reduce((sum, bar) => sum + bar.all, 0)} events in the last hour, ${bars.reduce((sum, bar) => sum + bar.bad, 0)} of them warnings`}>
        {bars.map((bar, i) => (
          <span key={i} title={bar.all ? `${clock(bar.from)}: ${bar.all} events, ${bar.bad} warnings` : undefined}>
            <i style={{ height: `${(100 * (bar.all - bar.bad)) / highest}%` }} />
            <i class="bad" style={{ height: `${(100 * bar.bad) / highest}%` }} />
          </span>
        ))}
      </div>
      {error && <p class="problem">{error}</p>}
      {value && listed.length === 0 && <p class="quiet">No events. The API server keeps them for an hour by default.</p>}
      <ol class="events">
        {listed.map((event, i) => (
          <li key={event.at + event.object + event.reason + i} class={event.type === "Warning" ? "warning" : ""}>
            <time dateTime={event.at}>{clock(at(event.at))}</time>
            <span class="what">{event.reason}</span>
            <span class="on">
              <Linked text={event.object} object={event.object} namespace={namespace} link={link} />
            </span>
            <span class="text">
              {event.text}
              {event.count > 1 ? <span class="quiet"> ×{event.count}</span> : null}
            </span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function minutes(events: Event[], now: number): { from: number; all: number; bad: number }[] {
  const first = Math.floor(now / 60) - 59;
  const bars = Array.from({ length: 60 }, (_, i) => ({ from: (first + i) * 60, all: 0, bad: 0 }));
  for (const event of events) {
    const bar = bars[Math.floor(at(event.at) / 60) - first];
    if (!bar) continue;
    bar.all++;
    if (event.type === "Warning") bar.bad++;
  }
  return bars;
}

export function Facts({ facts, full }: { facts: [string, ComponentChildren][]; full?: boolean }) {
  return (
    <dl class={full ? "facts full" : "facts"}>
      {facts
        .filter(([, value]) => value !== undefined && value !== null && value !== "")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

// Conditions shows the conditions of an object of Cluster API and of its infrastructure.
export function Conditions({ detail }: { detail: Detail | null }) {
  const now = useClock();
  return (
    <>
      {(detail?.conditions ?? []).map((of) => (
        <div key={of.object}>
          <h3>{of.object}</h3>
          <ConditionTable conditions={of.states ?? []} now={now} />
        </div>
      ))}
    </>
  );
}

export function ConditionTable({ conditions, now }: { conditions: (Condition & { type: string })[]; now: number }) {
  return (
    <table class="plain">
      <caption>Conditions</caption>
      <tbody>
        {conditions.map((condition) => (
          <tr key={condition.type}>
            <td>{condition.type}</td>
            <td>{condition.status}</td>
            <td>{condition.since ? age(now - condition.since) : ""}</td>
            <td>{condition.reason}</td>
            <td class="quiet">{condition.message}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

// Yaml shows an object on request.
export function Yaml({ kind, namespace, name, version }: { kind: string; namespace?: string; name: string; version: unknown }) {
  const [open, setOpen] = useState(false);
  return (
    <details class="yaml" open={open} onToggle={(event) => setOpen((event.currentTarget as HTMLDetailsElement).open)}>
      <summary>YAML</summary>
      {open && <YamlText kind={kind} namespace={namespace ?? ""} name={name} version={version} />}
    </details>
  );
}

function YamlText({ kind, namespace, name, version }: { kind: string; namespace: string; name: string; version: unknown }) {
  const { value, error } = useFetched<{ yaml: string }>("yaml", { kind, namespace, name }, version);
  if (error) return <p class="problem">{error}</p>;
  return (
    <div class="code">
      <Copy text={value?.yaml ?? ""} />
      <pre tabIndex={0}>{value?.yaml ?? "…"}</pre>
    </div>
  );
}

export function Copy({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" class="copy" onClick={copy}>
      {copied ? "Copied" : "Copy"}
    </button>
  );
}
