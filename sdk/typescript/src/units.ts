/** Sizes and durations as people write them. */

/** Bytes, or text such as `512MiB`, `2G`, `1.5GB`: `K`, `M`, `G`, `T` are powers of 1024, `kB`, `MB`… of 1000. */
export type Size = number | string;
/** Milliseconds, or text such as `90s`, `1h30m`, `500ms`, `2d`. */
export type Duration = number | string;

const SIZES: Record<string, number> = {
  "": 1, b: 1, k: 2 ** 10, kib: 2 ** 10, m: 2 ** 20, mib: 2 ** 20, g: 2 ** 30, gib: 2 ** 30, t: 2 ** 40, tib: 2 ** 40,
  kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12,
};
const DURATIONS: Record<string, number> = { ms: 1, s: 1e3, m: 6e4, min: 6e4, h: 36e5, d: 864e5 };

export function bytes(size: Size): number {
  if (typeof size === "number") return size;
  const match = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(size);
  const unit = SIZES[match?.[2]?.toLowerCase() ?? "none"];
  if (!match || unit === undefined) throw new RangeError(`'${size}' is not a size: write it like 512MiB, 2G or 1.5GB`);
  return Math.round(Number(match[1]) * unit);
}

export function milliseconds(duration: Duration): number {
  if (typeof duration === "number") return Math.round(duration);
  const wrong = () => new RangeError(`'${duration}' is not a duration: write it like 90s, 1h30m or 500ms`);
  const text = duration.trim();
  let total = 0;
  let at = 0;
  do {
    const match = /^(\d+(?:\.\d+)?)\s*([a-z]+)\s*/.exec(text.slice(at));
    const unit = DURATIONS[match?.[2] ?? "none"];
    if (!match || unit === undefined) throw wrong();
    total += Number(match[1]) * unit;
    at += match[0].length;
  } while (at < text.length);
  return Math.round(total);
}
