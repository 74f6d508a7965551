// Terminals: a new shell, or one that other users see too. The server runs the shell, so leaving the page ends nothing.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, socket, type AttachServerMessage, type ExecList, type ExecWithOutput, type Sandbox } from "../api";
import { age, command } from "../format";
import { now } from "../live";
import { isDark } from "../theme";
import { attempt, Empty } from "../ui/parts";
import { usePoll } from "../ui/poll";

/** Bytes before the data of an output message: the stream and the offset. */
const FRAME_HEAD_BYTES = 9;
const RETRY_MS = 1_000;
// A shell that the sandbox has, as a login shell.
const SHELL = 'if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi';

export function TerminalTab({ sandbox }: { sandbox: Sandbox }) {
  const [chosen, choose] = useState<string>();
  const polled = usePoll(`terminals ${sandbox.id}`, 3_000, (signal) =>
    call<ExecList>("get", "/v1/sandboxes/{sandbox}/execs", { in: { sandbox: sandbox.id }, query: { state: "running", limit: 200 }, signal }),
  );
  const open = polled.value?.items.filter((one) => one.tty) ?? [];
  const start = async () => {
    const started = await attempt(() =>
      call<ExecWithOutput>("post", "/v1/sandboxes/{sandbox}/execs", {
        in: { sandbox: sandbox.id },
        json: {
          shell: SHELL,
          tty: { cols: 100, rows: 30 },
          stdin: true,
          env: { TERM: "xterm-256color" },
          idempotency_key: crypto.randomUUID(),
        },
      }),
    );
    if (started) {
      choose(started.exec.id);
      polled.again();
    }
  };
  return (
    <>
      <div class="bar">
        <button class="first" onClick={() => void start()}>
          New terminal
        </button>
        {open.map((one) => (
          <button key={one.id} aria-pressed={chosen === one.id} onClick={() => choose(one.id)}>
            {one.argv.includes(SHELL) ? "shell" : command(one.argv).slice(0, 24)} · {age(one.created_at_ms, now.value)}
          </button>
        ))}
      </div>
      {chosen ? (
        <Screen key={chosen} sandbox={sandbox.id} exec={chosen} />
      ) : (
        <Empty title={open.length ? "Terminals are open here" : "No terminal is open"}>
          {open.length ? "Choose one to look at it and type in it, together with whoever else does." : "A terminal goes on when you leave the page."}
        </Empty>
      )}
    </>
  );
}

function Screen({ sandbox, exec }: { sandbox: string; exec: string }) {
  const place = useRef<HTMLDivElement>(null);
  const [status, tell] = useState("Connecting…");
  useEffect(() => {
    let stop = () => {};
    let gone = false;
    void import("./screen").then(({ openScreen }) => {
      if (!gone && place.current) stop = attach(openScreen(place.current, isDark()), sandbox, exec, tell);
    });
    return () => {
      gone = true;
      stop();
    };
  }, [sandbox, exec]);
  return (
    <section class="term" aria-label="Terminal">
      <div class="screen" ref={place} />
      <p class="muted" role="status">
        {status}
      </p>
    </section>
  );
}

/** Connects a screen to a command. When the connection breaks, it reconnects and goes on after the last byte. */
function attach(screen: import("./screen").Screen, sandbox: string, exec: string, tell: (status: string) => void): () => void {
  let connection: WebSocket | undefined;
  let offset = 0;
  let over = false;
  let timer: number | undefined;
  const send = (data: string | Uint8Array<ArrayBuffer>) => {
    if (connection?.readyState === WebSocket.OPEN) connection.send(data);
  };
  const resize = () => send(JSON.stringify({ type: "resize", ...screen.size() }));
  screen.onKeys((text) => send(new TextEncoder().encode(text)));
  screen.onResize(resize);
  const connect = () => {
    const opened = socket("/v1/sandboxes/{sandbox}/execs/{exec}/attach", { sandbox, exec }, { offset });
    connection = opened;
    opened.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      if (typeof data !== "string") {
        const view = new DataView(data);
        offset = Number(view.getBigUint64(1)) + data.byteLength - FRAME_HEAD_BYTES;
        screen.write(new Uint8Array(data, FRAME_HEAD_BYTES));
        return;
      }
      const message = JSON.parse(data) as AttachServerMessage;
      if (message.type === "attached") {
        tell("Connected");
        resize();
      } else if (message.type === "gap") {
        offset = message.to;
      } else if (message.type === "exit") {
        over = true;
        tell(`Ended${message.exit.code == null ? "" : ` with code ${message.exit.code}`}`);
      } else {
        tell(message.error.message);
      }
    };
    opened.onclose = () => {
      if (over) return;
      tell("The connection broke; connecting again…");
      timer = window.setTimeout(connect, RETRY_MS);
    };
  };
  connect();
  return () => {
    over = true;
    clearTimeout(timer);
    connection?.close();
    screen.close();
  };
}

