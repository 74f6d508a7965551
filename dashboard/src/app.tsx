// The frame of every page: the navigation, and the page that the path names.

import { useEffect, useState } from "preact/hooks";
import { issuer, signOut } from "./api";
import { offline } from "./live";
import { Palette, openPalette } from "./palette";
import { route } from "./router";
import { attempt, Empty, Notices } from "./ui/parts";
import { Create } from "./pages/create";
import { SandboxesPage } from "./pages/sandboxes";
import { SandboxPage } from "./sandbox/page";
import { DoctorPage, KeysPage, NodesPage, SecretsPage, UsagePage } from "./pages/admin";
import { AgentsPage } from "./pages/agents";
import { AuditPage } from "./pages/audit";
import { BuildsPage } from "./pages/builds";
import { SnapshotsPage } from "./pages/snapshots";
import { ImagesPage, PoolsPage, TemplatesPage, VolumesPage } from "./pages/tables";

const PAGES = [
  { path: "", name: "Sandboxes", page: SandboxesPage },
  { path: "agents", name: "Agents", page: AgentsPage },
  { path: "templates", name: "Templates", page: TemplatesPage },
  { path: "builds", name: "Builds", page: BuildsPage },
  { path: "images", name: "Images", page: ImagesPage },
  { path: "pools", name: "Pools", page: PoolsPage },
  { path: "snapshots", name: "Snapshots", page: SnapshotsPage },
  { path: "volumes", name: "Volumes", page: VolumesPage },
  { path: "keys", name: "Keys", page: KeysPage },
  { path: "secrets", name: "Secrets", page: SecretsPage },
  { path: "usage", name: "Usage", page: UsagePage },
  { path: "audit", name: "Audit", page: AuditPage },
  { path: "nodes", name: "Nodes", page: NodesPage },
  { path: "doctor", name: "Doctor", page: DoctorPage },
] as const;

const MAC = navigator.platform.startsWith("Mac");

export function App() {
  const [first = "", id] = route.value;
  const inSandbox = first === "sandboxes" && id !== undefined;
  const here = inSandbox ? "" : first;
  const found = PAGES.find((one) => one.path === here);
  useEffect(() => {
    document.title = inSandbox ? `${id} · Atoll` : `${found?.name ?? "Not found"} · Atoll`;
  }, [id, found?.name]);
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class="side">
        <a class="brand" href="/">
          <Mark /> Atoll
        </a>
        <nav aria-label="Pages">
          {PAGES.map((one) => (
            <a key={one.path} href={`/${one.path}`} aria-current={one.path === here ? "page" : undefined}>
              {one.name}
            </a>
          ))}
        </nav>
        <button class="quiet find" onClick={openPalette} aria-keyshortcuts="Control+K Meta+K">
          Go to… <kbd>{MAC ? "⌘K" : "Ctrl K"}</kbd>
        </button>
        <button class="quiet" onClick={() => void attempt(signOut)}>
          Sign out
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        {offline.value && (
          <div class="banner" role="alert">
            Not current: {offline.value}
          </div>
        )}
        {inSandbox ? (
          <SandboxPage key={id} id={id} tab={route.value[2] ?? "overview"} />
        ) : found ? (
          <found.page />
        ) : (
          <Empty title="There is no such page">
            <a href="/">All sandboxes</a>
          </Empty>
        )}
      </main>
      <Palette
        pages={PAGES.map((one) => ({ name: one.name, path: `/${one.path}` }))}
      />
      <Create />
      <Notices />
    </>
  );
}

export function SignedOut({ why }: { why: string }) {
  const [name, setName] = useState<string>();
  useEffect(() => void issuer().then(setName, () => undefined), []);
  return (
    <main class="alone">
      <h1>
        <Mark /> Atoll
      </h1>
      <p>You are not signed in here: {why}.</p>
      {name && (
        <p>
          <a class="button" href="/login/oidc">
            Log in with {name}
          </a>
        </p>
      )}
      <p>
        On the machine that runs the server, <code>atoll dashboard</code> prints a link that signs you in.
      </p>
      <button onClick={() => location.reload()}>Try again</button>
    </main>
  );
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <circle cx="16" cy="16" r="11" stroke-dasharray="56 13" transform="rotate(-60 16 16)" />
    </svg>
  );
}
