// The terminal emulator, fetched when the first terminal is opened.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal, type ITheme } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";

export interface Screen {
  write(data: Uint8Array): void;
  size(): { cols: number; rows: number };
  onKeys(listener: (text: string) => void): void;
  onResize(listener: () => void): void;
  close(): void;
}

const DARK: ITheme = { background: "#0b0f12", foreground: "#dbe4e6", cursor: "#2dd4bf", selectionBackground: "#2b4a52" };
const LIGHT: ITheme = {
  background: "#ffffff", foreground: "#17232a", cursor: "#0f766e", selectionBackground: "#b9e4de",
  yellow: "#8a6100", green: "#1a7f37", cyan: "#0b7285", white: "#5b6b73", brightWhite: "#37474f",
  brightYellow: "#7a5600", brightGreen: "#116329", brightCyan: "#0b7285",
};

export function openScreen(place: HTMLElement, dark: boolean): Screen {
  const terminal = new Terminal({
    fontFamily: 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace',
    fontSize: 13,
    cursorBlink: true,
    scrollback: 10_000,
    screenReaderMode: true,
    theme: dark ? DARK : LIGHT,
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  withoutInlineStyle(() => terminal.open(place));
  fit.fit();
  terminal.focus();
  const resized = new ResizeObserver(() => fit.fit());
  resized.observe(place);
  return {
    write: (data) => terminal.write(data),
    size: () => ({ cols: terminal.cols, rows: terminal.rows }),
    onKeys: (listener) => {
      terminal.onData(listener);
      terminal.onBinary(listener);
    },
    onResize: (listener) => void terminal.onResize(listener),
    close: () => {
      resized.disconnect();
      terminal.dispose();
    },
  };
}

/**
 * The emulator writes its colours into `<style>` elements, which the content security policy refuses. While the
 * emulator opens, this function replaces those elements: their text goes into the document's `adoptedStyleSheets`, to
 * which the policy does not apply.
 */
function withoutInlineStyle(open: () => void): void {
  const make = document.createElement;
  document.createElement = function (this: Document, name: string, options?: ElementCreationOptions) {
    // A `<template>`, which shows nothing, replaces the style: the browser would report even an empty style as refused.
    if (name === "style") return adopt(make.call(this, "template"));
    return make.call(this, name, options);
  } as typeof document.createElement;
  try {
    open();
  } finally {
    // Without the document's own property, `createElement` is the prototype's method again.
    delete (document as Partial<Document>).createElement;
  }
}

function adopt(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  Object.defineProperty(element, "textContent", { get: () => "", set: (text: string) => sheet.replaceSync(text) });
  const remove = element.remove.bind(element);
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    remove();
  };
  return element;
}
