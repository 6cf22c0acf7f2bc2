// Requests to the server.

import { useEffect, useRef, useState } from "preact/hooks";
import { url } from "./address";

// The user must log in with the form. The message is the reason.
export class LoginNeeded extends Error {}

// Called when a proxy in front of the page requires the user to log in again.
export const proxy = { askLogin(_reason: string): void {} };

async function request(path: string, options: RequestInit = {}): Promise<unknown> {
  // A proxy redirects to its login page, or responds with status 401, depending on the header Accept.
  const response = await fetch(url(path), { ...options, redirect: "manual", headers: { Accept: "application/json" } });
  const body: unknown = await response.json().catch(() => ({}));
  const { error, form } = body as { error?: string; form?: boolean };
  if (response.status === 401 && form) throw new LoginNeeded(error);
  if (response.status === 401 || response.type === "opaqueredirect") {
    const reason = error || "You are not logged in, or your session has expired.";
    proxy.askLogin(reason);
    throw new Error(reason);
  }
  if (!response.ok) throw new Error(error || `The server responded with status ${response.status}.`);
  return body;
}

export async function get<T>(path: string, parameters: Record<string, string> = {}): Promise<T> {
  return (await request(`${path}?${new URLSearchParams(parameters)}`)) as T;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  return (await request(path, { method: "POST", body: JSON.stringify(body) })) as T;
}

export interface Fetched<T> {
  value: T | null;
  error: string;
}

// useFetched reads something, again when version changes, and every few seconds while the page is visible. Two reads are at
// least two seconds apart.
export function useFetched<T>(path: string, parameters: Record<string, string>, version: unknown): Fetched<T> {
  const key = path + "?" + new URLSearchParams(parameters);
  const [fetched, setFetched] = useState<Fetched<T> & { key: string }>({ value: null, error: "", key });
  const last = useRef(0);
  const latest = useRef(key);
  latest.current = key;
  useEffect(() => {
    let current = true;
    let timer = 0;
    const again = (delay: number) => {
      timer = window.setTimeout(load, delay);
    };
    const load = async () => {
      if (document.hidden) {
        again(beat);
        return;
      }
      last.current = performance.now();
      try {
        const value = await get<T>(path, parameters);
        // A result is shown even if the version has changed since: with frequent changes, none would be current.
        if (latest.current === key) setFetched({ value, error: "", key });
      } catch (error) {
        if (latest.current === key) setFetched((before) => ({ value: before.key === key ? before.value : null, error: (error as Error).message, key }));
      }
      if (current) again(beat);
    };
    again(fetched.key === key && fetched.value ? Math.max(0, pace - (performance.now() - last.current)) : 0);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key, version]);
  return fetched.key === key ? fetched : { value: null, error: "" };
}

const pace = 2000;
const beat = 8000;
