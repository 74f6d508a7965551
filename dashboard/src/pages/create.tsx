// The dialog that makes a sandbox.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { call, every, type CreateSandbox, type Image, type IsolationLevel, type Sandbox, type ServerInfo, type Template } from "../api";
import { refresh } from "../live";
import { go } from "../router";
import { attempt, Dialog, Field } from "../ui/parts";
import { usePoll } from "../ui/poll";

/** Whether the dialog is shown. */
export const creating = signal(false);

const MIB = 1024 * 1024;

export function Create() {
  return creating.value ? <Form /> : null;
}

interface Sources {
  templates: Template[];
  images: Image[];
  levels: string[];
}

async function sources(): Promise<Sources> {
  const [templates, images, info] = await Promise.all([
    every<Template>("/v1/templates"),
    every<Image>("/v1/images"),
    call<ServerInfo>("get", "/v1/info"),
  ]);
  return { templates, images, levels: info.isolation };
}

function Form() {
  const [busy, wait] = useState(false);
  const known = usePoll("sources", null, sources).value;
  const close = () => (creating.value = false);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    wait(true);
    const made = await attempt(() => call<Sandbox>("post", "/v1/sandboxes", { json: wanted(form) }));
    wait(false);
    if (!made) return;
    close();
    refresh(0);
    go(`/sandboxes/${made.id}`);
  };
  return (
    <Dialog title="New sandbox" onClose={close}>
      <form onSubmit={(event) => void submit(event)}>
        <h2>New sandbox</h2>
        <div class="fields">
          <Field label="Name" hint="Lower-case letters, digits and dashes; may be left out">
            <input name="name" autofocus autocomplete="off" pattern="[a-z0-9]([a-z0-9\-]*[a-z0-9])?" maxLength={63} />
          </Field>
          <Field label="From">
            <select name="source">
              <option value="image host">This machine's own system (host)</option>
              {known?.templates.map((one) => (
                <option key={one.id} value={`template ${one.name}:${one.version}`}>
                  Template {one.name}:{one.version}
                </option>
              ))}
              {known?.images.flatMap((one) =>
                one.names.map((name) => (
                  <option key={name} value={`image ${name}`}>
                    Image {name}
                  </option>
                )),
              )}
            </select>
          </Field>
          <Field label="Isolation">
            <select name="isolation">
              <option value="">As the server or template says</option>
              {known?.levels.map((level) => <option key={level}>{level}</option>)}
            </select>
          </Field>
          <Field label="Internet">
            <select name="internet">
              <option value="">As the server or template says</option>
              <option value="off">Off</option>
              <option value="on">On</option>
            </select>
          </Field>
          <Field label="Memory, MiB">
            <input name="memory" type="number" min={64} placeholder="default" />
          </Field>
          <Field label="Processors">
            <input name="cpu" type="number" min={0.1} step={0.1} placeholder="default" />
          </Field>
          <Field label="Lives for, minutes">
            <input name="ttl" type="number" min={1} placeholder="until deleted" />
          </Field>
          <Field label="Labels" hint="key=value, with commas between">
            <input name="labels" autocomplete="off" placeholder="team=core, run=42" />
          </Field>
        </div>
        <footer>
          <button type="button" class="quiet" onClick={close}>
            Cancel
          </button>
          <button class="first" disabled={busy}>
            {busy ? "Making it…" : "Create"}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

function wanted(form: FormData): CreateSandbox {
  const text = (name: string) => String(form.get(name) ?? "").trim();
  const [kind, ...source] = text("source").split(" ");
  const spec: CreateSandbox = { [kind === "template" ? "template" : "image"]: source.join(" ") };
  if (text("name")) spec.name = text("name");
  if (text("isolation")) spec.isolation = text("isolation") as IsolationLevel;
  const internet = text("internet");
  if (internet === "on" || internet === "off") spec.egress = { internet };
  const resources = {
    ...(text("memory") && { memory_bytes: Number(text("memory")) * MIB }),
    ...(text("cpu") && { cpu_millis: Math.round(Number(text("cpu")) * 1000) }),
  };
  if (Object.keys(resources).length) spec.resources = resources;
  if (text("ttl")) spec.ttl_ms = Number(text("ttl")) * 60_000;
  const labels = text("labels").split(",").map((pair) => pair.split("=").map((part) => part.trim()));
  const named = labels.filter(([key]) => key);
  if (named.length) spec.labels = Object.fromEntries(named.map(([key, value = ""]) => [key, value])) as never;
  return spec;
}
