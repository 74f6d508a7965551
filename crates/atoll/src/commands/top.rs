//! `atoll top`: what sandboxes use, as it changes. One request for all of them at each look.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use atoll_api::{LiveUsage, LiveUsageList};
use atoll_client::Client;
use atoll_core::sandbox::{PauseMode, SandboxState};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cli::{TopArgs, TopSort};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table};
use crate::signals::Stops;
use crate::terminal::{self, RawMode};
use crate::units::format_bytes;

/// Between the two looks of `--once`: the server gives out the same measurement for nearly as long.
const LOOK_AGAIN_MS: u64 = 1000;
/// Shows the table in place of what is on the screen, without the cursor: as `less` does, so that what was there comes back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// One sandbox between two looks.
#[derive(Debug, Clone, Serialize)]
struct Row {
    #[serde(flatten)]
    now: LiveUsage,
    /// Of one processor, percent; none until it was looked at twice.
    cpu_percent: Option<f64>,
    /// Bytes out of it and into it, in a second.
    sent_bytes_per_second: Option<f64>,
    received_bytes_per_second: Option<f64>,
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Top {
    items: Vec<Row>,
}

/// The usage at the look before, by sandbox.
#[derive(Debug, Default)]
struct Before(HashMap<String, LiveUsage>);

impl Before {
    /// Compares a look with the one before, and keeps it.
    fn rows(&mut self, list: LiveUsageList) -> Vec<Row> {
        let rows = list.items.into_iter().map(|now| {
            let before = self.0.get(&now.id).filter(|before| now.at_ms > before.at_ms);
            let rate = |of: fn(&LiveUsage) -> u64| {
                let before = before?;
                // A server that was started anew counts from zero.
                let more = of(&now).checked_sub(of(before))?;
                Some(as_f64(more) * 1000.0 / as_f64(now.at_ms - before.at_ms))
            };
            Row {
                cpu_percent: rate(|one| one.cpu_us).map(|us| us / 10_000.0),
                sent_bytes_per_second: rate(|one| one.sent_bytes),
                received_bytes_per_second: rate(|one| one.received_bytes),
                now,
            }
        });
        let rows: Vec<_> = rows.collect();
        self.0 = rows.iter().map(|row| (row.now.id.clone(), row.now.clone())).collect();
        rows
    }
}

#[expect(clippy::cast_precision_loss, reason = "to be shown with three digits")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "to be shown")]
fn as_u64(number: f64) -> u64 {
    number.max(0.0) as u64
}

fn sort(rows: &mut [Row], by: TopSort) {
    let name = |row: &Row| row.now.name.clone().unwrap_or_else(|| row.now.id.clone());
    rows.sort_by_cached_key(|row| {
        let now = &row.now;
        let most = match by {
            TopSort::Cpu => as_u64(row.cpu_percent.unwrap_or(0.0) * 1000.0),
            TopSort::Memory => now.memory_bytes,
            TopSort::Disk => now.disk_bytes,
            TopSort::Net => {
                let both =
                    row.sent_bytes_per_second.unwrap_or(0.0) + row.received_bytes_per_second.unwrap_or(0.0);
                as_u64(both * 1000.0)
            }
            TopSort::Execs => now.execs.into(),
            TopSort::Age => now.created_at_ms,
            TopSort::Name => 0,
        };
        (Reverse(most), name(row))
    });
}

fn cells(row: &Row) -> [String; 10] {
    let now = &row.now;
    let per_second =
        |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format_bytes(as_u64(rate)) + "/s");
    let state = match (now.state, now.paused) {
        (SandboxState::Paused, Some(PauseMode::Frozen)) => "frozen",
        (state, _) => state.as_str(),
    };
    [
        now.name.clone().unwrap_or_else(|| now.id.clone()),
        state.to_owned(),
        row.cpu_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}")),
        format!("{} / {}", format_bytes(now.memory_bytes), format_bytes(now.memory_limit_bytes)),
        format_bytes(now.disk_bytes),
        per_second(row.sent_bytes_per_second),
        per_second(row.received_bytes_per_second),
        now.execs.to_string(),
        now.pids.to_string(),
        age(now.created_at_ms),
    ]
}

const HEADER: [&str; 10] =
    ["SANDBOX", "STATE", "CPU %", "MEMORY", "DISK", "OUT", "IN", "EXECS", "PIDS", "AGE"];

/// One line over the table.
fn summary(rows: &[Row], by: TopSort) -> String {
    let running = rows.iter().filter(|row| row.now.state == SandboxState::Running).count();
    let cpu: f64 = rows.iter().filter_map(|row| row.cpu_percent).sum();
    let memory = rows.iter().map(|row| row.now.memory_bytes).sum();
    let (all, memory, by) = (rows.len(), format_bytes(memory), format!("{by:?}").to_lowercase());
    format!("{all} sandboxes, {running} run; CPU {cpu:.0} %, memory {memory}; by {by}")
}

/// `atoll top`
pub(super) async fn top(client: &Client, printer: Printer, args: TopArgs) -> Result<()> {
    let is_screen = !args.once && !printer.is_json() && terminal::is_interactive();
    if is_screen {
        return screen(client, printer, &args).await;
    }
    let mut before = Before::default();
    before.rows(client.live_usage(&args.label).await?);
    let pause = if args.once { LOOK_AGAIN_MS } else { args.every };
    loop {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let mut items = before.rows(client.live_usage(&args.label).await?);
        sort(&mut items, args.sort);
        let top = Top { items };
        let text = || table(HEADER, top.items.iter().map(cells));
        if args.once {
            return printer.result(&top, text);
        }
        if printer.is_json() { printer.stream_item(&top)? } else { printer.line(&text())? }
    }
}

/// The terminal as it is while the table is on it; given back however this ends.
struct Screen {
    _raw: RawMode,
}

impl Screen {
    fn enter() -> Result<Self> {
        let raw = RawMode::enable()?;
        write(ENTER)?;
        Ok(Self { _raw: raw })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is no place left to report a failure.
        drop(write(LEAVE));
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// The action that a key asks for.
enum Key {
    Sort(TopSort),
    End,
}

fn key(byte: u8) -> Option<Key> {
    Some(match byte {
        b'c' => Key::Sort(TopSort::Cpu),
        b'm' => Key::Sort(TopSort::Memory),
        b'd' => Key::Sort(TopSort::Disk),
        b'n' => Key::Sort(TopSort::Net),
        b'e' => Key::Sort(TopSort::Execs),
        b'a' => Key::Sort(TopSort::Age),
        b'i' => Key::Sort(TopSort::Name),
        // Also Ctrl-C and Ctrl-D: the terminal is raw.
        b'q' | 3 | 4 => Key::End,
        _ => return None,
    })
}

async fn screen(client: &Client, printer: Printer, args: &TopArgs) -> Result<()> {
    let mut stops = Stops::catch()?;
    let mut keys = terminal::read_stdin()?;
    let _screen = Screen::enter()?;
    let (mut before, mut by) = (Before::default(), args.sort);
    let mut rows = before.rows(client.live_usage(&args.label).await?);
    // The second look comes soon: only two looks show how busy the sandboxes are.
    let mut next = Instant::now() + Duration::from_millis(LOOK_AGAIN_MS);
    loop {
        sort(&mut rows, by);
        draw(&rows, by, printer.colors() && io::stdout().is_terminal())?;
        tokio::select! {
            stop = stops.next() => return Err(stop.failure()),
            pressed = pressed(&mut keys) => match pressed {
                Some(Key::Sort(wanted)) => by = wanted,
                Some(Key::End) => return Ok(()),
                None => {}
            },
            () = tokio::time::sleep_until(next) => {
                rows = before.rows(client.live_usage(&args.label).await?);
                next = Instant::now() + Duration::from_millis(args.every);
            }
        }
    }
}

/// The next key that means something; the end of standard input is an end.
async fn pressed(keys: &mut mpsc::Receiver<Bytes>) -> Option<Key> {
    match keys.recv().await {
        Some(bytes) => bytes.iter().find_map(|byte| key(*byte)),
        None => Some(Key::End),
    }
}

/// As much as fits on the screen.
fn draw(rows: &[Row], by: TopSort, colors: bool) -> Result<()> {
    let size = terminal::size();
    let (height, width) = (usize::from(size.rows), usize::from(size.cols));
    let text = table(HEADER, rows.iter().take(height).map(cells));
    let all = [summary(rows, by)].into_iter().chain(text.lines().map(str::to_owned));
    let mut screen = HOME.to_owned();
    for (number, line) in all.take(height.saturating_sub(1)).enumerate() {
        let line: String = line.chars().take(width).collect();
        let (begin, end) = if colors && number == 1 { (BOLD, PLAIN) } else { ("", "") };
        screen.extend([begin, &line, end, CLEAR_LINE, "\r\n"]);
    }
    screen.push_str(CLEAR_BELOW);
    write(&screen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(id: &str, at_ms: u64, cpu_us: u64, sent_bytes: u64) -> LiveUsage {
        LiveUsage {
            id: id.to_owned(),
            name: Some(format!("name-{id}")),
            state: SandboxState::Running,
            paused: None,
            created_at_ms: at_ms,
            at_ms,
            cpu_us,
            cpu_limit_millis: 1000,
            memory_bytes: cpu_us,
            memory_limit_bytes: 1 << 30,
            disk_bytes: 0,
            pids: 1,
            execs: 0,
            sent_bytes,
            received_bytes: 0,
        }
    }

    #[test]
    fn two_looks_say_how_busy_they_are() {
        let mut before = Before::default();
        let look = |items: Vec<LiveUsage>| LiveUsageList { items };
        let first = before.rows(look(vec![usage("a", 1000, 0, 500), usage("b", 1000, 0, 0)]));
        assert!(first.iter().all(|row| row.cpu_percent.is_none()));
        // One went, one came, one was counted anew.
        let second = before.rows(look(vec![usage("a", 3000, 1_000_000, 100), usage("c", 3000, 5, 5)]));
        assert_eq!(second[0].cpu_percent, Some(50.0));
        assert_eq!(second[0].sent_bytes_per_second, None);
        assert_eq!((second[1].cpu_percent, before.0.len()), (None, 2));
        // The server answers with its earlier measurement.
        let third = before.rows(look(vec![usage("a", 3000, 1_000_000, 100)]));
        assert_eq!(third[0].cpu_percent, None);
    }

    #[test]
    fn rows_are_sorted() {
        let mut before = Before::default();
        before.rows(LiveUsageList { items: vec![usage("a", 1, 0, 0), usage("b", 1, 0, 0)] });
        let mut rows =
            before.rows(LiveUsageList { items: vec![usage("a", 1001, 10, 9), usage("b", 1001, 20, 0)] });
        let ids = |rows: &[Row]| rows.iter().map(|row| row.now.id.clone()).collect::<Vec<_>>().concat();
        for (by, expected) in [
            (TopSort::Cpu, "ba"),
            (TopSort::Memory, "ba"),
            (TopSort::Net, "ab"),
            (TopSort::Name, "ab"),
            (TopSort::Disk, "ab"),
        ] {
            sort(&mut rows, by);
            assert_eq!(ids(&rows), expected, "{by:?}");
        }
        assert!(summary(&rows, TopSort::Cpu).starts_with("2 sandboxes, 2 run;"));
        let wild = Row {
            now: LiveUsage { name: Some("\x1b[2J".to_owned()), ..usage("a", 1, 0, 0) },
            ..rows[0].clone()
        };
        assert!(!table(HEADER, [cells(&wild)]).contains('\x1b'));
    }
}
