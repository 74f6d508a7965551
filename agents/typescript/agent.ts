// An agent of your own: messages come in as lines of JSON, what it says goes out as such. Anthropic's API, streamed; one tool.
import { spawnSync } from "node:child_process";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";

type Block =
  | { type: "text"; text: string }
  | { type: "tool_use"; id: string; name: string; input: { command?: string } }
  | { type: "tool_result"; tool_use_id: string; content: string };
type Message = { role: "user" | "assistant"; content: string | Block[] };

const url = (process.env.ANTHROPIC_BASE_URL ?? "https://api.anthropic.com") + "/v1/messages";
const model = process.env.MODEL ?? "claude-sonnet-4-5";
const schema = { type: "object", properties: { command: { type: "string" } }, required: ["command"] };
const tools = [{ name: "bash", description: "Runs a command of the shell.", input_schema: schema }];
const system = "You mend programs in the directory you are in. Be brief.";

const say = (event: object) => console.log(JSON.stringify(event));

/** Sends the conversation to the model; tells its words as they come; gives what it said. */
async function ask(messages: Message[]): Promise<Block[]> {
  // The value of the variable is a placeholder: the key is put in on the way to the model.
  const headers = { "x-api-key": process.env.ANTHROPIC_API_KEY!, "anthropic-version": "2023-06-01", "content-type": "application/json" };
  const body = JSON.stringify({ model, system, messages, tools, max_tokens: 8192, stream: true });
  const answer = await fetch(url, { method: "POST", headers, body });
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 2000));
  const blocks: Block[] = [];
  let json = "";
  for await (const line of createInterface({ input: Readable.fromWeb(answer.body as any) })) {
    if (!line.startsWith("data: ")) continue;
    const event = JSON.parse(line.slice(6));
    if (event.type === "content_block_start") blocks.push(event.content_block), (json = "");
    const last = blocks[blocks.length - 1];
    if (event.type === "content_block_delta" && event.delta.type === "text_delta" && last.type === "text") {
      last.text += event.delta.text;
      say({ type: "text", text: event.delta.text });
    }
    if (event.type === "content_block_delta" && event.delta.type === "input_json_delta") json += event.delta.partial_json;
    if (event.type === "content_block_stop" && last.type === "tool_use") last.input = JSON.parse(json || "{}");
  }
  return blocks;
}

async function work(messages: Message[]): Promise<void> {
  for (;;) {
    const said = await ask(messages);
    messages.push({ role: "assistant", content: said });
    const results: Block[] = [];
    for (const call of said) {
      if (call.type !== "tool_use") continue;
      const done = spawnSync("sh", ["-c", call.input.command ?? ""], { encoding: "utf8" });
      const content = `${done.stdout}${done.stderr}\n(code ${done.status})`.slice(-20000);
      say({ type: "tool", name: call.name, title: call.input.command, status: "completed", output: content.slice(-4000) });
      results.push({ type: "tool_result", tool_use_id: call.id, content });
    }
    if (results.length === 0) return;
    messages.push({ role: "user", content: results });
  }
}

const conversation: Message[] = [];
for await (const line of createInterface({ input: process.stdin })) {
  const told = JSON.parse(line);
  if (told.type !== "message") continue;
  conversation.push({ role: "user", content: told.text });
  try {
    await work(conversation);
    say({ type: "done" });
  } catch (error) {
    say({ type: "error", code: "model", text: String(error) });
  }
}
