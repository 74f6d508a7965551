// The command palette: ctrl-k or cmd-k, type, Enter.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { sandboxes } from "./live";
import { creating } from "./pages/create";
import { go } from "./router";
import { setTheme } from "./theme";
import { Dialog } from "./ui/parts";

const open = signal(false);
const SHOWN_MAX = 12;

export function openPalette(): void {
  open.value = true;
}

interface Entry {
  name: string;
  note: string;
  run: () => void;
}

function entries(pages: { name: string; path: string }[]): Entry[] {
  const list: Entry[] = [
    { name: "New sandbox", note: "n", run: () => (creating.value = true) },
    ...pages.map((page) => ({ name: page.name, note: "page", run: () => go(page.path) })),
  ];
  for (const one of sandboxes.value ?? []) {
    const name = one.name ?? one.id;
    list.push({ name, note: one.state, run: () => go(`/sandboxes/${one.id}`) });
    list.push({ name: `${name}: terminal`, note: "open", run: () => go(`/sandboxes/${one.id}/terminal`) });
    list.push({ name: `${name}: timeline`, note: "open", run: () => go(`/sandboxes/${one.id}/timeline`) });
  }
  for (const theme of ["auto", "light", "dark"] as const) {
    list.push({ name: `Theme: ${theme}`, note: "look", run: () => setTheme(theme) });
  }
  return list;
}

export function Palette({ pages }: { pages: { name: string; path: string }[] }) {
  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      const typing = (event.target as Element).matches("input, textarea, select, .xterm *");
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && !event.shiftKey) {
        event.preventDefault();
        open.value = !open.value;
      } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && !document.querySelector("dialog[open]")) {
        if (event.key === "n") {
          event.preventDefault();
          creating.value = true;
        } else if (event.key === "/") {
          const filter = document.querySelector<HTMLInputElement>("input[type=search]");
          if (filter) {
            event.preventDefault();
            filter.focus();
          }
        }
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  return open.value ? <Choices pages={pages} /> : null;
}

function Choices({ pages }: { pages: { name: string; path: string }[] }) {
  const [text, type] = useState("");
  const [at, move] = useState(0);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = entries(pages)
    .filter((entry) => words.every((word) => entry.name.toLowerCase().includes(word)))
    .slice(0, SHOWN_MAX);
  const choose = (entry: Entry | undefined) => {
    if (!entry) return;
    open.value = false;
    entry.run();
  };
  return (
    <Dialog title="Go to" class="palette" onClose={() => (open.value = false)}>
      <input
        autofocus
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found[at] ? `palette-${at}` : undefined}
        aria-label="Go to"
        placeholder="A sandbox, a page, something to do"
        value={text}
        onInput={(event) => (type(event.currentTarget.value), move(0))}
        onKeyDown={(event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step) {
            event.preventDefault();
            move((at + step + found.length) % Math.max(1, found.length));
          } else if (event.key === "Enter") {
            event.preventDefault();
            choose(found[at]);
          }
        }}
      />
      <ul id="palette-list" role="listbox" aria-label="Found">
        {found.map((entry, index) => (
          <li
            key={entry.name}
            id={`palette-${index}`}
            role="option"
            aria-selected={index === at}
            onMouseMove={() => move(index)}
            onClick={() => choose(entry)}
          >
            <span>{entry.name}</span>
            <small>{entry.note}</small>
          </li>
        ))}
      </ul>
      {found.length === 0 && <p class="muted pad">Nothing of that name.</p>}
    </Dialog>
  );
}
