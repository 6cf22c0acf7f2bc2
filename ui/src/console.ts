// The console of a virtual machine, in a page of its own: the terminal needs style elements, which the other page forbids.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { socket as address } from "./address";

const [namespace = "", name = ""] = location.hash.slice(1).split("/").map(decodeURIComponent);
const title = document.getElementById("title")!;
const state = document.getElementById("state")!;
const again = document.getElementById("again") as HTMLButtonElement;
const screen = document.getElementById("screen")!;
const back = document.getElementById("back") as HTMLAnchorElement;

title.textContent = name;
document.title = name + " · Console";
back.href = `./${location.search}#/vm/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

const terminal = new Terminal({
  allowProposedApi: false,
  fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
  fontSize: 14,
  scrollback: 5000,
  theme: { background: "#101214", foreground: "#d9dde2", cursor: "#d9dde2" },
  // Links of the guest are not opened.
  linkHandler: { activate: () => {} },
});
const fit = new FitAddon();
terminal.loadAddon(fit);
terminal.open(screen);
fit.fit();
addEventListener("resize", () => fit.fit());

// A guest controls its output. It may not set the title of the page or the clipboard, or add links.
for (const code of [0, 1, 2, 8, 52]) terminal.parser.registerOscHandler(code, () => true);

const encoder = new TextEncoder();
let socket: WebSocket | null = null;

function connect(): void {
  again.hidden = true;
  state.textContent = "Connecting…";
  terminal.reset();
  const parameters = new URLSearchParams({ namespace, name });
  const next = new WebSocket(address(`console?${parameters}`));
  socket = next;
  next.binaryType = "arraybuffer";
  next.onmessage = (message) => {
    state.textContent = "Connected";
    terminal.write(new Uint8Array(message.data as ArrayBuffer));
  };
  let opened = false;
  next.onopen = () => {
    opened = true;
    terminal.focus();
  };
  next.onclose = (closed) => {
    if (socket !== next) return;
    socket = null;
    // Browsers do not report why.
    state.textContent = opened ? reason(closed) : "The connection cannot be opened. If a proxy logs you in, reload this page to log in again.";
    again.hidden = false;
  };
}

function reason(closed: CloseEvent): string {
  switch (closed.code) {
    case 1000:
      return "Closed";
    case 1001:
      return "The virtual machine has terminated or left its host.";
    case 1013:
      return "The guest prints faster than its output can be shown.";
  }
  return closed.reason || "The connection was lost.";
}

terminal.onData((text) => {
  if (socket?.readyState === WebSocket.OPEN) socket.send(encoder.encode(text));
});

// Several lines are pasted only after a question, because each is executed as soon as it arrives.
screen.addEventListener(
  "paste",
  (event) => {
    const text = event.clipboardData?.getData("text") ?? "";
    const lines = text.split(/\r\n|\r|\n/).length;
    if (lines > 1 && !confirm(`Paste ${lines} lines into the console of ${name}?`)) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
  },
  { capture: true },
);

again.addEventListener("click", connect);
connect();
