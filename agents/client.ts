// Talks to an agent in a sandbox: client.ts AGENT TEXT… A connection that breaks goes on where it was.
const [agent, ...words] = process.argv.slice(2);

async function call(method, path, body = undefined, more = {}) {
  const headers = { Authorization: `Bearer ${process.env.ATOLL_API_KEY}`, "Content-Type": "application/json", ...more };
  const url = `${process.env.ATOLL_URL}/v1/agents/${agent}/sessions${path}`;
  const answer = await fetch(url, { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer;
}

const session = (await (await call("POST", "", { thread: "main" })).json()).id;
const asked = (await (await call("POST", `/${session}/messages`, { text: words.join(" ") })).json()).number;
for (let after = asked; ; ) {
  try {
    let text = "";
    const stream = await call("GET", `/${session}/stream`, undefined, { "Last-Event-ID": String(after) });
    for await (const piece of stream.body.pipeThrough(new TextDecoderStream())) {
      const lines = (text + piece).split("\n");
      text = lines.pop();
      for (const line of lines.filter((line) => line.startsWith("data: "))) {
        const event = JSON.parse(line.slice(6));
        after = event.number;
        console.log(after, event.kind, event.data.text ?? "");
        if (event.kind === "approval") {
          // It can do no more than its sandbox may: whatever it asks for is allowed.
          await call("POST", `/${session}/approvals/${event.data.id}`, { option: event.data.options[0].id });
        }
        if (event.data.message === asked) process.exit(event.kind === "done" ? 0 : 1);
      }
    }
  } catch {
    await new Promise((go) => setTimeout(go, 100));
  }
}
