// The addresses of the server.

// url returns the address of a request. It is relative, because the page can be below any path.
export const url = (path: string): URL => new URL("api/" + path, location.href);

// socket returns the address of a WebSocket.
export function socket(path: string): string {
  const at = url(path);
  at.protocol = at.protocol === "https:" ? "wss:" : "ws:";
  return at.href;
}

// A WebSocket is closed with this code if the user must log in.
export const closedForLogin = 4001;
