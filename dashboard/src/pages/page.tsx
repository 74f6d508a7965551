// The frame of a page that reads one resource of the API every 5 seconds, or once.

import type { ComponentChildren } from "preact";
import { age, time } from "../format";
import { now } from "../live";
import { Waiting } from "../ui/parts";
import { usePoll } from "../ui/poll";

const EVERY_MS = 5_000;

/** A page that shows the result of `read`. A new `of` makes it read anew; `again` reads on request. */
export function Page<T>(props: {
  name: string;
  of?: string;
  once?: boolean;
  above?: (again: () => void) => ComponentChildren;
  read: (signal: AbortSignal) => Promise<T>;
  children: (value: T, again: () => void) => ComponentChildren;
}) {
  const polled = usePoll(`${props.name} ${props.of ?? ""}`, props.once ? null : EVERY_MS, props.read);
  return (
    <>
      <div class="top">
        <h1>{props.name}</h1>
        {props.above && <div class="actions">{props.above(polled.again)}</div>}
      </div>
      {polled.value === undefined ? <Waiting error={polled.error} /> : props.children(polled.value, polled.again)}
    </>
  );
}

export const Age = ({ since }: { since: number }) => <span title={time(since)}>{age(since, now.value)}</span>;

/** Buttons from which the user chooses one. */
export function Choice(props: { label: string; all: string[]; chosen: string; choose: (name: string) => void }) {
  return (
    <div class="segments" role="group" aria-label={props.label}>
      {props.all.map((name) => (
        <button key={name} type="button" aria-pressed={name === props.chosen} onClick={() => props.choose(name)}>
          {name}
        </button>
      ))}
    </div>
  );
}
