// The theme: light, dark, or the system's.

export type Theme = "auto" | "light" | "dark";
const NAME = "atoll-theme";

export function restoreTheme(): void {
  const kept = localStorage.getItem(NAME);
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}

export function setTheme(theme: Theme): void {
  if (theme === "auto") {
    localStorage.removeItem(NAME);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(NAME, theme);
    document.documentElement.dataset.theme = theme;
  }
}

/** Whether dark is shown now. */
export function isDark(): boolean {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
