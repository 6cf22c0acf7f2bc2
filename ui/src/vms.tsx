// Virtual machines and hosts.

import { Actions } from "./action";
import { age, bytes, clock, href } from "./format";
import { Empty, Facts, Unread, Yaml } from "./parts";
import type { HostRow, Migration, VMRow } from "./rows";
import { store, useClock, useStore } from "./store";

const tone: Record<string, string> = { Running: "ok", Creating: "new", New: "new", Terminating: "end", Stopped: "warn", Lost: "bad" };

// stateOf describes what a VM does or waits for, as "millwright vm list" does.
function stateOf(vm: VMRow): string {
  if (!vm.ready) return "waiting for the VM controller";
  return [vm.ready.reason, vm.ready.message].filter((part) => part).join(": ");
}

const moving = (migration?: Migration): boolean => migration?.phase === "Preparing" || migration?.phase === "Copying";

export function VMs() {
  useStore();
  const now = useClock();
  const vms = store.vms();
  return (
    <>
      <h1>Virtual machines</h1>
      <Unread kinds={["VirtualMachine"]} />
      {vms.length > 0 && <VMTable vms={vms} now={now} />}
      {store.kind("VirtualMachine")?.access === "ok" && vms.length === 0 && <Empty title="No virtual machines">Machines of the driver vm create them.</Empty>}
    </>
  );
}

function VMTable({ vms, now }: { vms: VMRow[]; now: number }) {
  return (
    <div class="wide">
      <table class="plain">
        <thead>
          <tr>
            <th>Name</th>
            <th>Phase</th>
            <th>Host</th>
            <th>Address</th>
            <th class="right">Age</th>
            <th>State</th>
            <th>
              <span class="hidden">Console</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {vms.map((vm) => (
            <tr key={vm.id}>
              <td class="mono">
                <a href={href("vm", vm.namespace, vm.name)}>{vm.name}</a>
              </td>
              <td>
                <i class={"dot " + (tone[vm.phase] ?? "warn")} /> {vm.phase}
              </td>
              <td>{vm.host ? <a href={href("host", undefined, vm.host)}>{vm.host}</a> : ""}</td>
              <td class="mono">{(vm.addresses ?? []).join(", ")}</td>
              <td class="right">{vm.created ? age(now - vm.created) : ""}</td>
              <td>{moving(vm.migration) ? <Progress migration={vm.migration!} /> : <span class="quiet">{stateOf(vm)}</span>}</td>
              <td>{store.about?.console && vm.phase === "Running" && <a href={consoleOf(vm)}>Console</a>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const consoleOf = (vm: VMRow): string => "console.html" + location.search + "#" + encodeURIComponent(vm.namespace!) + "/" + encodeURIComponent(vm.name);

function Progress({ migration }: { migration: Migration }) {
  const { done = 0, total = 0, target, phase } = migration;
  return (
    <span class="progress">
      <progress aria-label={`Migration to ${target}`} max={total || 1} value={phase === "Preparing" || !total ? undefined : Math.min(done, total)} />
      <span>
        to {target ?? "another host"}
        {total ? `, ${bytes(done)} of ${bytes(total)}` : ""}
      </span>
    </span>
  );
}

export function VM({ namespace, name }: { namespace: string; name: string }) {
  useStore();
  const now = useClock();
  const vm = store.get<VMRow>(`vm/${namespace}/${name}`);
  const migration = vm?.migration;
  return (
    <>
      <header class="head">
        <div>
          <p class="crumb">
            <a href="#/vms">Virtual machines</a> / {namespace}
          </p>
          <h1>{name}</h1>
        </div>
        {vm && (
          <div class="actions">
            {store.about?.console && vm.phase === "Running" && (
              <a class="button" href={consoleOf(vm)}>
                Console
              </a>
            )}
            <Actions row={vm} />
          </div>
        )}
      </header>
      <Unread kinds={["VirtualMachine"]} />
      {!vm && store.kind("VirtualMachine")?.access === "ok" && <Empty title="This virtual machine does not exist">It was deleted, or never existed.</Empty>}
      {vm && (
        <>
          <p class="numbers">
            <span class={"pill " + (tone[vm.phase] ?? "warn")}>{vm.phase}</span> <span>{stateOf(vm)}</span>
          </p>
          {vm.restart?.status === "True" && <p class="notes">Restart needed: {vm.restart.message || vm.restart.reason}</p>}
          {migration && (
            <section>
              <h2>Migration</h2>
              {moving(migration) ? (
                <Progress migration={migration} />
              ) : (
                <p>
                  {migration.phase === "Succeeded" ? `Moved from ${migration.source} to ${migration.target}` : `${migration.phase}: ${migration.reason ?? ""} ${migration.message ?? ""}`}
                  <span class="quiet">
                    {migration.end ? ` at ${clock(migration.end)}` : ""}
                    {migration.downtime !== undefined ? `; the guest was paused for ${migration.downtime} ms` : ""}
                  </span>
                </p>
              )}
            </section>
          )}
          <section>
            <h2>Details</h2>
            <Facts
              facts={[
                ["Host", vm.host && <a href={href("host", undefined, vm.host)}>{vm.host}</a>],
                ["Addresses", (vm.addresses ?? []).join(", ")],
                ["CPUs", vm.cpus ? String(vm.cpus) : ""],
                ["Memory", vm.memory],
                ["Disks", (vm.disks ?? []).join(", ")],
                ["Lease", vm.lease],
                ["Live migration", vm.migratable && (vm.migratable.status === "True" ? "possible" : `not possible: ${vm.migratable.message || vm.migratable.reason}`)],
                ["Hypervisor Pod", vm.pod && <span class="mono">{vm.pod}</span>],
                ["UUID", vm.uuid && <span class="mono">{vm.uuid}</span>],
                ["Created", vm.created ? age(now - vm.created) + " ago" : ""],
              ]}
            />
            <Yaml kind="vm" namespace={namespace} name={name} version={vm} />
          </section>
        </>
      )}
    </>
  );
}

export function Hosts() {
  useStore();
  const now = useClock();
  const hosts = store.hosts();
  const on = vmsByHost();
  return (
    <>
      <h1>Hosts</h1>
      <Unread kinds={["Node", "VirtualMachine"]} />
      {hosts.length > 0 && (
        <div class="wide">
          <table class="plain">
            <thead>
              <tr>
                <th>Name</th>
                <th>State</th>
                <th class="right">CPUs</th>
                <th class="right">Memory</th>
                <th class="right">Virtual machines</th>
                <th class="right">Age</th>
              </tr>
            </thead>
            <tbody>
              {hosts.map((host) => (
                <tr key={host.id}>
                  <td>
                    <a href={href("host", undefined, host.name)}>{host.name}</a>
                  </td>
                  <td>
                    <HostState host={host} vms={on.get(host.name) ?? []} />
                  </td>
                  <td class="right">{host.cpus}</td>
                  <td class="right">{host.memory ? bytes(host.memory) : ""}</td>
                  <td class="right">{(on.get(host.name) ?? []).length}</td>
                  <td class="right">{host.created ? age(now - host.created) : ""}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {store.kind("Node")?.access === "ok" && hosts.length === 0 && <Empty title="No hosts">Hosts run the virtual machines of the driver vm. Machines of other drivers need none.</Empty>}
    </>
  );
}

function vmsByHost(): Map<string, VMRow[]> {
  const on = new Map<string, VMRow[]>();
  for (const vm of store.vms()) {
    if (vm.host) on.set(vm.host, [...(on.get(vm.host) ?? []), vm]);
  }
  return on;
}

function HostState({ host, vms }: { host: HostRow; vms: VMRow[] }) {
  const state = !host.ready ? "bad" : host.cordoned ? "warn" : "ok";
  return (
    <>
      <i class={"dot " + state} /> {host.ready ? (host.cordoned ? (vms.length > 0 ? `Cordoned, ${vms.length} left` : "Drained") : "Ready") : "Not ready"}
      {host.message ? <span class="quiet"> {host.message}</span> : null}
    </>
  );
}

export function Host({ name }: { name: string }) {
  useStore();
  const now = useClock();
  const host = store.get<HostRow>(`host/${name}`);
  const vms = vmsByHost().get(name) ?? [];
  return (
    <>
      <header class="head">
        <div>
          <p class="crumb">
            <a href="#/hosts">Hosts</a>
          </p>
          <h1>{name}</h1>
        </div>
      </header>
      <Unread kinds={["Node", "VirtualMachine"]} />
      {!host && store.kind("Node")?.access === "ok" && <Empty title="This host does not exist">It was removed, or never existed.</Empty>}
      {host && (
        <p class="numbers">
          <HostState host={host} vms={vms} />
          <span class="quiet">
            {host.cpus} CPUs, {host.memory ? bytes(host.memory) : "unknown memory"}
          </span>
        </p>
      )}
      <section>
        <h2>Virtual machines</h2>
        {vms.length > 0 ? <VMTable vms={vms} now={now} /> : <p class="quiet">No virtual machines run on this host.</p>}
      </section>
      {host && <Yaml kind="host" name={name} version={host} />}
    </>
  );
}
