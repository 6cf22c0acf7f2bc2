// The addresses of the server.

// The only namespace to show, for users who log in at a proxy and therefore cannot enter it in the form.
const namespace = new URLSearchParams(location.search).get("namespace");

// url returns the address of a request. It is relative, because the page can be below any path.
export function url(path: string): URL {
  const at = new URL("api/" + path, location.href);
  if (namespace) at.searchParams.set("in", namespace);
  return at;
}

// socket returns the address of a WebSocket.
export function socket(path: string): string {
  const at = url(path);
  at.protocol = at.protocol === "https:" ? "wss:" : "ws:";
  return at.href;
}

// A WebSocket is closed with this code if the user must log in.
export const closedForLogin = 4001;
