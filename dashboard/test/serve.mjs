// Stands in, for the tests of the dashboard, for the part of the server that serves it: its files with the headers that
// they get, a session, and the API below the same origin.
//
// node dashboard/test/serve.mjs: reads ATOLL_URL and ATOLL_API_KEY, prints its own address.

import { createServer, request } from "node:http";
import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { connect } from "node:net";
import { extname, join, normalize } from "node:path";

const upstream = new URL(process.env.ATOLL_URL);
const key = process.env.ATOLL_API_KEY;
const root = new URL("../dist/", import.meta.url).pathname;
const csrf = randomBytes(16).toString("hex");
const session = randomBytes(16).toString("hex");

const HEADERS = {
  "content-security-policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
};
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

const signedIn = (message) => (message.headers.cookie ?? "").split("; ").includes(`atoll-session=${session}`);

function headersFor(message) {
  const { cookie, origin, host, "x-atoll-csrf": token, ...rest } = message.headers;
  return { ...rest, host: upstream.host, authorization: `Bearer ${key}` };
}

function refuse(answer, status, text) {
  answer.writeHead(status, { "content-type": "application/json" });
  answer.end(JSON.stringify({ code: "unauthorized", message: text, hint: null, retryable: false }));
}

const server = createServer(async (message, answer) => {
  const { pathname } = new URL(message.url, "http://here");
  if (pathname === "/login") {
    answer.writeHead(303, { location: "/", "set-cookie": `atoll-session=${session}; Path=/; HttpOnly; SameSite=Strict` });
    answer.end();
  } else if (pathname === "/session") {
    if (!signedIn(message)) return refuse(answer, 401, "there is no session");
    answer.writeHead(200, { "content-type": "application/json", "cache-control": "no-store" });
    answer.end(JSON.stringify({ csrf }));
  } else if (pathname.startsWith("/v1/")) {
    const safe = message.method === "GET" || message.method === "HEAD";
    if (!signedIn(message)) return refuse(answer, 401, "there is no session");
    if (!safe && message.headers["x-atoll-csrf"] !== csrf) return refuse(answer, 403, "the CSRF token is wrong");
    const onward = request(
      { host: upstream.hostname, port: upstream.port, path: message.url, method: message.method, headers: headersFor(message) },
      (reply) => {
        answer.writeHead(reply.statusCode, reply.headers);
        reply.pipe(answer);
      },
    );
    onward.on("error", () => answer.destroy());
    answer.on("close", () => onward.destroy());
    message.pipe(onward);
  } else {
    const wanted = extname(pathname) ? normalize(pathname) : "index.html";
    try {
      const body = await readFile(join(root, wanted));
      answer.writeHead(200, { ...HEADERS, "content-type": TYPES[extname(wanted)] ?? "application/octet-stream" });
      answer.end(body);
    } catch {
      answer.writeHead(404, HEADERS);
      answer.end();
    }
  }
});

server.on("upgrade", (message, socket, head) => {
  const own = message.headers.origin === `http://${message.headers.host}`;
  if (!signedIn(message) || !own) return socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
  const onward = connect(Number(upstream.port), upstream.hostname, () => {
    const lines = Object.entries(headersFor(message)).map(([name, value]) => `${name}: ${value}`);
    onward.write(`GET ${message.url} HTTP/1.1\r\n${lines.join("\r\n")}\r\n\r\n`);
    if (head.length) onward.write(head);
    onward.pipe(socket).pipe(onward);
  });
  for (const [one, other] of [[socket, onward], [onward, socket]]) {
    one.on("error", () => other.destroy());
    one.on("close", () => other.destroy());
  }
});

server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
