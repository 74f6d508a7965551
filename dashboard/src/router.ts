// One small router on the History API: the path is a signal.

import { signal } from "@preact/signals";

/** Parts of the current path, decoded. */
export const route = signal(parts());

function parts(): string[] {
  return location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
}

/** Goes to a page of the dashboard. */
export function go(path: string): void {
  history.pushState(null, "", path);
  route.value = parts();
  scrollTo(0, 0);
}

/** Makes the page's links and the browser's Back and Forward buttons work without loading the page anew. */
export function listen(): void {
  addEventListener("popstate", () => (route.value = parts()));
  addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = (event.target as Element).closest("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (/^\/(v1|login)\//.test(link.pathname) || link.hash) return;
    event.preventDefault();
    go(link.pathname);
  });
}
