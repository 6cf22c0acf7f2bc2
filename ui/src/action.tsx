// Buttons that change something. Each shows the command that it stands for, and asks before it runs it.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "./api";
import { Copy } from "./parts";
import type { Action, Detail, PoolRow, Row, VMRow } from "./rows";
import { store } from "./store";

// hidden are the actions that have no effect on an object.
function hidden(action: Action, row: Row): boolean {
  if ((row as PoolRow).managed) return true;
  switch (action.name) {
    case "pause":
    case "capi-pause":
      return !!(row as PoolRow).paused;
    case "resume":
    case "capi-resume":
      return !(row as PoolRow).paused;
    case "release":
      return !(row as { preserved?: number }).preserved;
    case "preserve":
      return !!(row as { preserved?: number }).preserved;
    case "migrate":
      return (row as VMRow).migratable?.status !== "True";
  }
  return false;
}

export function Actions({ row }: { row: Row }) {
  const [chosen, setChosen] = useState<Action | null>(null);
  const [done, setDone] = useState("");
  useEffect(() => setDone(""), [row.id]);
  const actions = (store.about?.actions ?? []).filter((action) => action.kind === row.kind && !hidden(action, row));
  return (
    <div class="actions">
      <span class="done" role="status">
        {done}
      </span>
      {actions.map((action) => (
        <button type="button" key={action.name} disabled={!!row.deleting} onClick={() => setChosen(action)}>
          {action.title}
        </button>
      ))}
      {chosen && (
        <Ask
          key={chosen.name}
          action={chosen}
          row={row}
          close={(text) => {
            setChosen((now) => (now === chosen ? null : now)); // another one may have been chosen meanwhile
            setDone(text);
          }}
        />
      )}
    </div>
  );
}

function Ask({ action, row, close }: { action: Action; row: Row; close: (done: string) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [replicas, setReplicas] = useState(String((row as PoolRow).replicas ?? ""));
  const [revision, setRevision] = useState(0);
  const [host, setHost] = useState("");
  const [command, setCommand] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const valid = action.input !== "replicas" || /^[0-9]{1,6}$/.test(replicas);
  const request = {
    action: action.name,
    namespace: row.namespace ?? "",
    name: row.name,
    ...(action.input === "replicas" && valid ? { replicas: Number(replicas) } : {}),
    ...(action.input === "revision" && revision ? { revision } : {}),
    ...(action.input === "host" && host ? { host } : {}),
  };
  const key = JSON.stringify(request);

  useEffect(() => dialog.current!.showModal(), []);
  useEffect(() => {
    let current = true;
    setProblem("");
    if (!valid) {
      setCommand("");
      return;
    }
    post<{ command: string }>("plan", request).then(
      (plan) => current && setCommand(plan.command),
      (error: Error) => current && setProblem(error.message),
    );
    return () => {
      current = false;
    };
  }, [key, valid]);

  const run = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      close((await post<{ done: string }>("do", request)).done);
    } catch (error) {
      setProblem((error as Error).message);
      setBusy(false);
    }
  };

  return (
    <dialog ref={dialog} class="ask" aria-labelledby="ask-title" onClose={() => close("")}>
      <form onSubmit={run}>
        <h2 id="ask-title">
          {action.title} <span class="mono">{row.name}</span>
        </h2>
        <p>{action.effect}</p>
        {action.input === "replicas" && (
          <label>
            Machines
            <input inputMode="numeric" autofocus value={replicas} onInput={(event) => setReplicas(event.currentTarget.value)} />
          </label>
        )}
        {action.input === "revision" && <Revisions row={row} value={revision} choose={setRevision} />}
        {action.input === "host" && (
          <label>
            Host
            <select autofocus value={host} onChange={(event) => setHost(event.currentTarget.value)}>
              <option value="">Any other host</option>
              {store
                .hosts()
                .filter((candidate) => candidate.name !== (row as VMRow).host)
                .map((candidate) => (
                  <option key={candidate.name}>{candidate.name}</option>
                ))}
            </select>
          </label>
        )}
        <div class="command">
          <code>{command || "…"}</code>
          <Copy text={command} />
        </div>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <footer>
          <button type="button" onClick={() => dialog.current!.close()}>
            Cancel
          </button>
          <button type="submit" class={action.interrupts ? "run danger" : "run"} disabled={busy || !command}>
            {action.title}
          </button>
        </footer>
      </form>
    </dialog>
  );
}

function Revisions({ row, value, choose }: { row: Row; value: number; choose: (revision: number) => void }) {
  const [revisions, setRevisions] = useState<NonNullable<Detail["revisions"]>>([]);
  useEffect(() => {
    get<Detail>("pool", { namespace: row.namespace ?? "", name: row.name }).then(
      (detail) => setRevisions(detail.revisions ?? []),
      () => setRevisions([]), // the previous revision can be chosen anyway
    );
  }, [row.id]);
  return (
    <label>
      Revision
      <select autofocus value={String(value)} onChange={(event) => choose(Number(event.currentTarget.value))}>
        <option value="0">The previous one</option>
        {revisions
          .filter((revision) => !revision.current)
          .map((revision) => (
            <option key={revision.number} value={String(revision.number)}>
              {revision.number}: class {revision.class}
              {revision.cause ? `, ${revision.cause}` : ""}
            </option>
          ))}
      </select>
    </label>
  );
}
