//! The events of a cell, from any of them on.
//!
//! An event's number is one past the last byte of its line in the output of the cell's exec: it is the same for every
//! reader, and where the next one begins to read. The last event, which no line says, comes one after the last byte.

use std::time::Duration;

use atoll_core::code::{CellEventKind, Line};
use atoll_core::error::shorten;
use atoll_core::exec::OutputStream;
use atoll_core::id::SandboxId;
use atoll_core::{Error, Result};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::boxed;
use crate::engine::Engine;
use crate::exec::{ExecView, OutputEvent, OutputReader};
use crate::log::Piece;

use super::cells::CellView;
use super::lines::Lines;

/// Output that is read at once, bytes.
const READ_BYTES: usize = 64 << 10;

/// An event of a cell.
#[derive(Debug, Clone, PartialEq)]
pub struct CellEvent {
    /// Rises from event to event, not by one.
    pub number: u64,
    /// What it is about.
    pub kind: CellEventKind,
    /// What it says.
    pub data: Value,
}

/// Events of a cell after a number.
#[derive(Debug, Clone, PartialEq)]
pub struct CellPage {
    /// The events, in order.
    pub events: Vec<CellEvent>,
    /// The last of all events is among them, or was before them.
    pub ended: bool,
}

impl Engine {
    /// The events of a cell after a number: at least one, if there is one within `wait`, then as many as there are without
    /// waiting, until there are `limit` or their lines have more than `max_bytes`.
    ///
    /// # Errors
    /// As [`Self::cell`]; [`atoll_core::Code::InvalidArgument`] for a number that no event has;
    /// [`atoll_core::Code::ShuttingDown`].
    #[boxed]
    pub async fn cell_events(
        &self,
        sandbox: &SandboxId,
        (context, cell): (&str, &str),
        after: u64,
        (limit, max_bytes): (u32, u64),
        wait: Duration,
    ) -> Result<CellPage> {
        let context = self.context(sandbox, context).await?;
        let view = self.cell_of(&context, self.exec(sandbox, cell).await?)?;
        if view.record.state.is_final() && after == view.extent.end + 1 {
            return Ok(CellPage { events: Vec::new(), ended: true });
        }
        self.check_number(&view, after).await?;
        let output = self.output(sandbox, cell, after, false).await?;
        let mut reader = Reader { output, lines: Lines::default(), events: Vec::new(), ended: false };
        let until = Instant::now() + wait;
        while !reader.is_full(after, limit, max_bytes) {
            let next = if reader.events.is_empty() && !wait.is_zero() {
                match tokio::time::timeout_at(until, reader.output.next(READ_BYTES)).await {
                    Ok(next) => Some(next?),
                    Err(_elapsed) => None,
                }
            } else {
                reader.output.next_now(READ_BYTES).await?
            };
            match next {
                Some(OutputEvent::Piece(piece)) => reader.take(piece),
                Some(OutputEvent::End { offset, .. }) => {
                    let end = self.cell_view(self.exec(sandbox, cell).await?).await?;
                    reader.end(offset, &end);
                }
                None => break,
            }
        }
        let Reader { mut events, mut ended, .. } = reader;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if events.len() > limit {
            events.truncate(limit);
            ended = false;
        }
        Ok(CellPage { events, ended })
    }

    /// Refuses a number that no event has: from the middle of a line nothing can be read.
    async fn check_number(&self, view: &ExecView, number: u64) -> Result<()> {
        let record = &view.record;
        if number == 0 || record.state.is_final() && number == view.extent.end {
            return Ok(());
        }
        let mut reader = self.output(&record.sandbox, record.id.as_str(), number - 1, false).await?;
        match reader.next_now(1).await? {
            Some(OutputEvent::Piece(Piece::Output { stream: OutputStream::Stdout, bytes, .. }))
                if bytes.as_ref() == b"\n" =>
            {
                Ok(())
            }
            // It is not kept any more: what comes next says so.
            Some(OutputEvent::Piece(Piece::Gap { .. })) => Ok(()),
            _ => Err(Error::invalid("after", "is not the number of an event")
                .hint("ask after the number of the last event that you have, or after 0")),
        }
    }
}

struct Reader {
    output: OutputReader,
    lines: Lines,
    events: Vec<CellEvent>,
    ended: bool,
}

impl Reader {
    fn is_full(&self, after: u64, limit: u32, max_bytes: u64) -> bool {
        let bytes = self.events.last().map_or(0, |event| event.number.saturating_sub(after));
        self.ended || bytes > max_bytes || self.events.len() as u64 >= u64::from(limit)
    }

    fn take(&mut self, piece: Piece) {
        for (number, line) in self.lines.push(piece) {
            self.tell(number, line);
        }
    }

    fn tell(&mut self, number: u64, line: Line) {
        match line {
            Line::Event(kind, data) => self.events.push(CellEvent { number, kind, data }),
            // The client's last word stands in the end.
            Line::End { .. } => {}
        }
    }

    fn end(&mut self, offset: u64, view: &CellView) {
        if let Some(line) = self.lines.finish() {
            self.tell(offset, line);
        }
        let mut data = json!({"state": view.state});
        if let Some(count) = view.execution_count {
            data["execution_count"] = count.into();
        }
        if let Some(reason) = view.reason {
            data["reason"] = reason.into();
        }
        if let Some(text) = view.said.as_deref().map(shorten).filter(|text| !text.is_empty()) {
            data["text"] = text.into();
        }
        self.events.push(CellEvent { number: offset + 1, kind: CellEventKind::End, data });
        self.ended = true;
    }
}
