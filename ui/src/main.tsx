// The page: navigation, the state of the connection, and the routes.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { number } from "./format";
import { LogInAgain, Login, LogOut } from "./login";
import { CAPIMachine, Machine } from "./machine";
import { Empty } from "./parts";
import { Metrics } from "./plots";
import { Pool, Pools } from "./pools";
import { Search } from "./search";
import { store, useStore } from "./store";
import { HintView } from "./tiles";
import { Host, Hosts, VM, VMs } from "./vms";

function useRoute(): string[] {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => {
      setHash(location.hash);
      scrollTo(0, 0);
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return hash.replace(/^#?\/?/, "").split("/").map(decode);
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a link that was typed
  }
}

function View({ route }: { route: string[] }) {
  const [kind, a = "", b = ""] = route;
  switch (kind) {
    case "":
      return <Pools />;
    case "pool":
      return <Pool key={a + "/" + b} kind="pool" namespace={a} name={b} />;
    case "machine":
      return <Machine key={a + "/" + b} namespace={a} name={b} />;
    case "capi-pool":
      return <Pool key={kind + a + "/" + b} kind="capi-pool" namespace={a} name={b} />;
    case "capi-machine":
      return <CAPIMachine key={a + "/" + b} namespace={a} name={b} />;
    case "vms":
      return <VMs />;
    case "vm":
      return <VM key={a + "/" + b} namespace={a} name={b} />;
    case "hosts":
      return <Hosts />;
    case "metrics":
      return <Metrics />;
    case "host":
      return <Host key={a} name={a} />;
  }
  return (
    <>
      <h1 class="hidden">Millwright</h1>
      <Empty title="No such page">
        <a href="#/">Show the pools</a>
      </Empty>
    </>
  );
}

const sections = [
  { title: "Pools", link: "#/", kinds: ["", "pool", "machine", "capi-pool", "capi-machine"], count: ["pool", "capi-pool"] },
  { title: "Virtual machines", link: "#/vms", kinds: ["vms", "vm"], count: ["vm"] },
  { title: "Hosts", link: "#/hosts", kinds: ["hosts", "host"], count: ["host"] },
  { title: "Metrics", link: "#/metrics", kinds: ["metrics"], count: [] },
];

function Count({ of }: { of: string[] }) {
  const count = of.reduce((sum, kind) => sum + store.count(kind), 0);
  return count > 0 ? <span class="count">{number(count)}</span> : null;
}

function App() {
  useStore();
  const route = useRoute();
  const lost = store.link === "lost" && !store.login;
  useEffect(() => {
    document.title = (route[2] || route[1] || sections.find((section) => section.kinds.includes(route[0]!))?.title || "") + " · Millwright";
  }, [route.join("/")]);
  if (store.login) return store.form ? <Login reason={store.login} /> : <LogInAgain reason={store.login} />;
  return (
    <>
      <header class="top">
        <a class="brand" href="#/">
          <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">
            <rect x="1" y="1" width="8" height="8" rx="2" />
            <rect x="11" y="1" width="8" height="8" rx="2" class="b" />
            <rect x="1" y="11" width="8" height="8" rx="2" class="b" />
            <rect x="11" y="11" width="8" height="8" rx="2" />
          </svg>
          Millwright
        </a>
        <nav aria-label="Sections">
          {sections.map((section) => (
            <a key={section.link} href={section.link} aria-current={section.kinds.includes(route[0]!) ? "page" : undefined}>
              {section.title}
              <Count of={section.count} />
            </a>
          ))}
        </nav>
        <Search />
        {store.about?.logOut && <LogOut />}
        <p class={"link " + (lost ? "lost" : "open")} role="status">
          {lost ? "Disconnected" : <span class="cluster">{place()}</span>}
        </p>
      </header>
      {lost && (
        <p class="banner" role="alert">
          {store.refused || (
            <>
              The connection to <code>millwright ui</code> is lost, and this page is out of date. It continues when the command runs again.
            </>
          )}
        </p>
      )}
      <main>{store.loaded ? <View route={route} /> : <p class="quiet loading">Reading the cluster…</p>}</main>
      <HintView />
    </>
  );
}

// place names the user who logged in, or the cluster, and the namespace if only one is shown.
function place(): string {
  const namespace = store.kind("Machine")?.namespace;
  const cluster = store.about ? store.about.user || store.about.context || store.about.cluster.replace(/^https?:\/\//, "") : "";
  return namespace ? `${namespace} · ${cluster}` : cluster;
}

// Two keys lead to the sections: g p, g v, g h, g m.
function chords(): void {
  const links: Record<string, string> = { p: "#/", v: "#/vms", h: "#/hosts", m: "#/metrics" };
  let pending = 0;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
    const link = links[event.key];
    if (event.key === "g") pending = event.timeStamp;
    else if (link && event.timeStamp - pending < 1000) location.hash = link.slice(1);
  });
}

chords();
store.begin();
render(<App />, document.getElementById("app")!);
