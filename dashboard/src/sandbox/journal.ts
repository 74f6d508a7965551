// Makes processes and marks over time from the events of a sandbox's journal.

import type { TraceEvent } from "../api";
import { command } from "../format";

/** Further fields of events. Each kind of event has some of them. */
export interface JournalEvent extends TraceEvent {
  exec?: string;
  process?: ProcessKey;
  parent?: ProcessKey;
  argv?: string[];
  path?: string;
  cwd?: string;
  user?: string;
  code?: number;
  signal?: number;
  reason?: string;
  state?: string;
  name?: string;
  answer?: string;
  record?: string;
  allowed?: boolean;
  subject?: string;
  rule?: string;
  host?: string;
  peer?: string;
  address?: string;
  port?: number;
  protocol?: string;
  method?: string;
  status?: number;
  source?: string;
  recorder?: string;
  count?: number;
}

interface ProcessKey {
  pid: number;
  start_ns: number;
}

export interface Node {
  key: string;
  title: string;
  pid?: number;
  exec?: string;
  start_us: number;
  end_us?: number;
  failed: boolean;
  marks: Mark[];
  children: Node[];
}

export interface Mark {
  at_us: number;
  text: string;
  bad: boolean;
}

const keyOf = (process: ProcessKey) => `${process.pid}:${process.start_ns}`;

/** Commands with their processes below them, in the order in which they began. */
export function treeOf(events: JournalEvent[]): Node[] {
  const execs = new Map<string, Node>();
  const processes = new Map<string, Node>();
  for (const event of [...events].sort((a, b) => a.at_us - b.at_us || a.number - b.number)) {
    if (event.kind === "exec_started" && event.exec) {
      execs.set(event.exec, node(`exec ${event.exec}`, command(event.argv ?? []), event));
    } else if (event.kind === "exec_ended" && event.exec) {
      finish(execs.get(event.exec), event);
    } else if ((event.kind === "process_forked" || event.kind === "process_started") && event.process) {
      const key = keyOf(event.process);
      const known = processes.get(key);
      if (known) {
        // A process that was forked and now runs another program is still the same process.
        if (event.argv) known.title = command(event.argv);
        continue;
      }
      const parent = event.parent && processes.get(keyOf(event.parent));
      const made = node(key, event.argv ? command(event.argv) : (parent?.title ?? "fork"), event);
      made.pid = event.process.pid;
      processes.set(key, made);
      // The first process of a command goes below the command. Processes that no command began are not shown.
      const above = parent?.exec && parent.exec === event.exec ? parent : event.exec ? execs.get(event.exec) : undefined;
      above?.children.push(made);
    } else if (event.kind === "process_exited" && event.process) {
      finish(processes.get(keyOf(event.process)), event);
    } else if (event.process && MARKED.has(event.kind)) {
      processes.get(keyOf(event.process))?.marks.push({ at_us: event.at_us, text: describe(event), bad: false });
    }
  }
  return [...execs.values()].map(folded);
}

const MARKED = new Set(["connect", "accept", "listen", "file"]);

function node(key: string, title: string, event: JournalEvent): Node {
  return { key, title, exec: event.exec, start_us: event.at_us, failed: false, marks: [], children: [] };
}

function finish(one: Node | undefined, event: JournalEvent): void {
  if (!one) return;
  one.end_us = event.at_us;
  one.failed = event.code !== undefined ? event.code !== 0 : true;
}

/** Shows a command and its only process as one line when both have the same title. */
function folded(exec: Node): Node {
  const [only, ...more] = exec.children;
  if (!only || more.length || only.title !== exec.title) return exec;
  return { ...exec, pid: only.pid, children: only.children, marks: only.marks };
}

/** Describes an event in one line. */
export function describe(event: JournalEvent): string {
  const ending = () => (event.signal ? `signal ${event.signal}` : event.code !== undefined ? `code ${event.code}` : (event.reason ?? ""));
  switch (event.kind) {
    case "created":
      return `made from ${event.source ?? "?"}`;
    case "state":
      return [event.state, event.reason].filter(Boolean).join(": ");
    case "exec_started":
    case "process_started":
      return command(event.argv ?? []);
    case "exec_ended":
    case "process_exited":
      return ending();
    case "call":
      return `${event.method ?? ""} ${event.path ?? ""} → ${event.status ?? "?"}`;
    case "dns":
      return `${event.name} ${event.record ?? ""} → ${event.answer}`;
    case "policy":
      return `${event.allowed ? "allowed" : "refused"} ${event.subject}: ${event.rule ?? ""}`;
    case "http":
      return `${event.method ?? ""} ${event.host ?? ""}${event.path ?? ""} → ${event.status ?? "?"}`;
    case "connect":
    case "accept":
      return `${event.protocol ?? ""} ${event.peer ?? ""}`;
    case "connection":
      return `${event.protocol ?? ""} ${event.host ?? event.address ?? ""}${event.port ? `:${event.port}` : ""}`;
    case "recorder":
      return event.recorder ?? "";
    case "lost":
      return `${event.count ?? "an unknown number of"} events are missing`;
    default:
      return [event.name, event.path, event.address, event.port, event.reason].filter((part) => part !== undefined).join(" ");
  }
}

/** The groups of the filter: whether a group shows a kind of event. */
export const GROUPS: Record<string, (kind: string) => boolean> = {
  processes: (kind) => kind.startsWith("process_") || kind.startsWith("exec_") || kind === "out_of_memory",
  network: (kind) => ["dns", "policy", "http", "connection", "connect", "accept", "listen"].includes(kind),
  sandbox: (kind) => ["created", "state", "limits", "snapshot", "forked", "rolled_back", "budget_exhausted", "recorder", "lost"].includes(kind),
  calls: (kind) => kind === "call",
};
