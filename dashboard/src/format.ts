// Formats values for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes, with a unit that keeps the number small. */
export function bytes(count: number): string {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count >= 100 || unit === 0 || Number.isInteger(count) ? Math.round(count) : count.toFixed(1)} ${UNITS[unit]}`;
}

/** A duration in milliseconds, in its largest unit; from one to ten hours also in minutes. */
export function duration(ms: number): string {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return s < 10 ? `${(ms / 1000).toFixed(1)} s` : `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 48) return m % 60 && h < 10 ? `${h} h ${m % 60} min` : `${h} h`;
  return `${Math.floor(h / 24)} d`;
}

/** An age in whole units, for lists. */
export function age(since_ms: number, now_ms: number): string {
  const s = Math.max(0, Math.floor((now_ms - since_ms) / 1000));
  return s < 60 ? `${s} s` : duration(s * 1000);
}

/** A point in time, in the browser's time zone. */
export function time(ms: number): string {
  return new Date(ms).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** The time of day in UTC, with milliseconds. */
export function clock(ms: number): string {
  return new Date(ms).toISOString().slice(11, 23);
}

/** A text in which nothing is invisible or turns the order of what follows: such characters are shown by their number. */
function visible(text: string): string {
  const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g;
  return text.replace(hidden, (one) => `\\u{${one.charCodeAt(0).toString(16)}}`);
}

/** A command line as a user would type it in a shell. */
export function command(argv: string[]): string {
  // `sh -c LINE` is shown as LINE, which is easier to read.
  if (argv.length === 3 && argv[1] === "-c" && /(^|\/)(sh|bash)$/.test(argv[0] ?? "")) return visible(argv[2] ?? "");
  return visible(shell(argv));
}

function shell(argv: string[]): string {
  return argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");
}

/** Thousandths of a processor. */
export function cpus(millis: number): string {
  return `${millis / 1000} CPU`;
}
