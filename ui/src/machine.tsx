// The page of a machine.

import type { ComponentChildren } from "preact";
import { Actions } from "./action";
import { useFetched } from "./api";
import { age, at, clock, href, phaseClass } from "./format";
import { Conditions, ConditionTable, Events, Facts, Timeline, Unread, Yaml } from "./parts";
import { Explanation } from "./pools";
import type { Detail, MachineRow, SetRow } from "./rows";
import { store, useClock, useStore } from "./store";

// Head is the head of the page of a machine, with a link to its pool.
function Head({ kind, namespace, pool, name, children }: { kind: string; namespace: string; pool?: string; name: string; children?: ComponentChildren }) {
  return (
    <header class="head">
      <div>
        <p class="crumb">
          <a href="#/">Pools</a> / {namespace}
          {pool ? (
            <>
              {" "}
              / <a href={href(kind, namespace, pool)}>{pool}</a>
            </>
          ) : null}
        </p>
        <h1>{name}</h1>
      </div>
      {children}
    </header>
  );
}

export function Machine({ namespace, name }: { namespace: string; name: string }) {
  useStore();
  const now = useClock();
  const machine = store.get<MachineRow>(`machine/${namespace}/${name}`);
  const { value, error } = useFetched<Detail>("machine", { namespace, name }, machine);
  const pool = machine?.set ? store.get<SetRow>(`set/${namespace}/${machine.set}`)?.pool : undefined;
  return (
    <>
      <Head kind="pool" namespace={namespace} pool={pool} name={name}>
        {machine && <Actions row={machine} />}
      </Head>
      <Unread kinds={["Machine"]} />
      {machine && <Phase machine={machine} now={now} />}
      <Explanation detail={value} error={error} namespace={namespace} />
      {value?.life && <Life detail={value} now={now} />}
      <Pods detail={value} now={now} />
      {machine && (
        <section>
          <h2>Details</h2>
          <Facts
            facts={[
              ["Class", machine.class],
              ["Set", machine.set],
              ["Provider ID", machine.providerID && <span class="mono">{machine.providerID}</span>],
              ["Virtual machine", value?.vm && <a href={href("vm", ...(value.vm.split("/") as [string, string]))}>{value.vm}</a>],
              ["Created", machine.created ? age(now - machine.created) + " ago" : ""],
            ]}
          />
          <Facts full facts={[["Last operation", value?.operation && operation(value.operation, now)]]} />
          <Node detail={value} now={now} />
          <Yaml kind="machine" namespace={namespace} name={name} version={machine} />
        </section>
      )}
      <Timeline parameters={{ namespace, machine: name }} version={machine} />
    </>
  );
}

// CAPIMachine is the page of a machine of Cluster API. The controllers report by conditions what it waits for.
export function CAPIMachine({ namespace, name }: { namespace: string; name: string }) {
  useStore();
  const now = useClock();
  const machine = store.get<MachineRow>(`capi-machine/${namespace}/${name}`);
  const { value, error } = useFetched<Detail>("capi-machine", { namespace, name }, machine);
  const pool = machine?.set ? store.get<SetRow>(`capi-set/${namespace}/${machine.set}`)?.pool : undefined;
  return (
    <>
      <Head kind="capi-pool" namespace={namespace} pool={pool} name={name} />
      <Unread kinds={["Cluster API Machine"]} />
      {machine && <Phase machine={machine} now={now} />}
      <Explanation detail={value} error={error} namespace={namespace} />
      {value?.life && <Life detail={value} now={now} />}
      {value?.conditions && (
        <section>
          <h2>Details</h2>
          <Facts
            facts={[
              ["Set", machine?.set],
              ["Node", machine?.node],
              ["Kubernetes", machine?.version],
              ["Infrastructure", value.infrastructure && `MillwrightMachine ${value.infrastructure}`],
              ["Driver", value.driver],
              ["Provider ID", machine?.providerID && <span class="mono">{machine.providerID}</span>],
              ["Created", machine?.created ? age(now - machine.created) + " ago" : ""],
            ]}
          />
          <Conditions detail={value} />
          <Node detail={value} now={now} />
          <Yaml kind="capi-machine" namespace={namespace} name={name} version={machine} />
        </section>
      )}
      {value && <Events events={value.report.events ?? []} error="" namespace={namespace} link="capi-machine" />}
    </>
  );
}

function Phase({ machine, now }: { machine: MachineRow; now: number }) {
  return (
    <p class="numbers">
      <span class={"pill " + phaseClass(machine.phase)}>{machine.phase}</span>
      {machine.since ? <span class="quiet">for {age(now - machine.since)}</span> : null}
      {machine.preserved ? <span class="pill update">Preserved for {age(machine.preserved - now)}</span> : null}
    </p>
  );
}

function operation(of: NonNullable<Detail["operation"]>, now: number): string {
  const when = of.at ? `, ${age(now - at(of.at))} ago` : "";
  return `${of.type} ${of.state}${of.code ? ` (${of.code})` : ""}${when}: ${of.text}`;
}

// Life shows when the machine got into its states, and how long each took.
function Life({ detail, now }: { detail: Detail; now: number }) {
  const life = detail.life!;
  return (
    <section aria-label="Life">
      <h2>Life</h2>
      <ol class="life">
        {life.map((moment, i) => {
          const next = life[i + 1];
          return (
            <li key={i}>
              <b>{moment.what}</b>
              <time dateTime={moment.at}>{clock(at(moment.at))}</time>
              <span class="quiet">{age((next ? at(next.at) : now) - at(moment.at))}</span>
            </li>
          );
        })}
      </ol>
    </section>
  );
}

function Pods({ detail, now }: { detail: Detail | null; now: number }) {
  if (!detail?.pods?.length) return null;
  return (
    <section>
      <h2>Pods that must leave the node</h2>
      <table class="plain">
        <thead>
          <tr>
            <th>Pod</th>
            <th>State</th>
            <th>Disruption budget</th>
          </tr>
        </thead>
        <tbody>
          {detail.pods.map((pod) => (
            <tr key={pod.namespace + "/" + pod.name}>
              <td class="mono">
                {pod.namespace}/{pod.name}
              </td>
              <td>{pod.terminating ? `Terminating for ${age(now - at(pod.terminating))}` : "Running"}</td>
              <td>
                {(pod.budgets ?? []).map((budget) => (
                  <span key={budget.name} class={budget.allowed > 0 ? "" : "held"}>
                    {budget.name}: {budget.allowed} may be evicted, {budget.healthy} of {budget.desired} required are healthy{" "}
                  </span>
                ))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Node({ detail, now }: { detail: Detail | null; now: number }) {
  const node = detail?.node;
  if (!node) return null;
  return (
    <>
      <h3>Node {node.name}</h3>
      <Facts
        facts={[
          ["Kubelet", node.version],
          ["System", node.os],
          ["Scheduling", node.cordoned ? "cordoned" : ""],
          ["Taints", node.taints?.join(", ")],
        ]}
      />
      <ConditionTable conditions={node.conditions ?? []} now={now} />
    </>
  );
}
