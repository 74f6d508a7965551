// Makes text from the output of commands.

import type { OutputChunk } from "../api";

const MARKS_MAX = 2_000;

/** The bytes of a piece of output. */
export function decode(chunk: Pick<OutputChunk, "data" | "encoding">): Uint8Array {
  if (chunk.encoding === "utf-8") return new TextEncoder().encode(chunk.data);
  return Uint8Array.from(atob(chunk.data), (letter) => letter.charCodeAt(0));
}

/** Removes the control sequences that only a terminal understands: colours, titles, movements. */
export function plain(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\r(?=\n)|[\0-\x08\x0b\x0c\x0e-\x1a]/g, "");
}

/** Splits the text at the hits of a search. Every second part is a hit. */
export function marked(text: string, search: string): { parts: string[]; hits: number } {
  if (!search) return { parts: [text], hits: 0 };
  const [low, wanted] = [text.toLowerCase(), search.toLowerCase()];
  // Some letters have another length in lower case. Positions in `low` are then wrong for `text`, so nothing is marked.
  if (low.length !== text.length) return { parts: [text], hits: 0 };
  const parts: string[] = [];
  let from = 0;
  let hits = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, at + wanted.length)) {
    hits += 1;
    if (hits > MARKS_MAX) continue;
    parts.push(text.slice(from, at), text.slice(at, at + wanted.length));
    from = at + wanted.length;
  }
  parts.push(text.slice(from));
  return { parts, hits };
}
