// Texts for numbers and times.

// age returns a duration in seconds like kubectl: "5s", "3m", "2h5m", "4d".
export function age(seconds: number): string {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return s + "s";
  const m = Math.floor(s / 60);
  if (m < 120) return m < 10 && s % 60 ? `${m}m${s % 60}s` : m + "m";
  const h = Math.floor(m / 60);
  if (h < 48) return h < 8 && m % 60 ? `${h}h${m % 60}m` : h + "h";
  return Math.floor(h / 24) + "d";
}

export const at = (time: string | undefined): number => (time ? Date.parse(time) / 1000 : 0);

export function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

export function bytes(n: number): string {
  if (n >= 1 << 30) return (n / (1 << 30)).toFixed(n >= 10 * (1 << 30) ? 0 : 1) + " GiB";
  return Math.round(n / (1 << 20)) + " MiB";
}

export const number = (n: number): string => n.toLocaleString("en-US");

export const plural = (n: number, one: string): string => `${number(n)} ${one}${n === 1 ? "" : "s"}`;

// href returns the permalink of an object.
export function href(kind: string, namespace: string | undefined, name: string): string {
  return "#/" + [kind, namespace, name].filter((part) => part).map((part) => encodeURIComponent(part!)).join("/");
}

// phaseClass returns the class of the color of a machine's phase.
export function phaseClass(phase: string): string {
  switch (phase) {
    case "Running":
    case "Available":
      return "ok";
    case "New":
    case "Pending":
    case "Provisioning":
    case "Provisioned":
      return "new";
    case "Terminating":
    case "Deleting":
    case "Deleted":
      return "end";
    case "Unknown":
      return "warn";
    case "Failed":
    case "CrashLoopBackOff":
    case "InPlaceUpdateFailed":
      return "bad";
  }
  return phase.startsWith("InPlace") || phase === "Updating" ? "update" : "warn";
}
