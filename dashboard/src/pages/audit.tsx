// The events of all sandboxes that the session may see: the flight recorder's journals, in one list.

import { useMemo, useState } from "preact/hooks";
import { address } from "../api";
import { Log, useEvents } from "../sandbox/log";
import { Empty } from "../ui/parts";
import { Choice } from "./page";

const PERIODS = { hour: 3_600_000, day: 86_400_000, week: 7 * 86_400_000, all: 0 } as const;
type Period = keyof typeof PERIODS;

export function AuditPage() {
  const [period, choose] = useState<Period>("hour");
  const stream = useMemo(
    () => address("/v1/events", {}, { since_ms: PERIODS[period] ? Date.now() - PERIODS[period] : 0 }),
    [period],
  );
  const events = useEvents(stream);
  return (
    <>
      <div class="top">
        <h1>Audit</h1>
        <div class="actions">
          <Choice label="Period" all={Object.keys(PERIODS)} chosen={period} choose={(name) => choose(name as Period)} />
        </div>
      </div>
      {events.length ? (
        <Log events={events} name="events" ofAll />
      ) : (
        <Empty title="Nothing was recorded then">What happens in sandboxes and with them is shown here, with who saw it.</Empty>
      )}
    </>
  );
}
