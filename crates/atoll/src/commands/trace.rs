//! `trace`: what sandboxes did.

use atoll_api::{TraceEvent, TraceReport};
use atoll_client::{Client, GetEvents};
use atoll_core::limits::WAIT_MAX_MS;
use atoll_core::{Code, Error};
use atoll_recorder::{Node, Numbered, Report, Summary};

use crate::cli::{ExportArgs, TraceArgs, TraceCommand, TraceOf, VerifyArgs};
use crate::failure::{Failure, Result};
use crate::output::{Printer, now_ms, table};
use crate::units::format_bytes;

mod show;

/// `atoll trace`
pub(super) async fn trace(client: &Client, printer: Printer, args: TraceArgs) -> Result<()> {
    match args.command {
        None => events(client, printer, args.of, args.follow).await,
        Some(TraceCommand::Summary(of)) => summary(client, printer, of).await,
        Some(TraceCommand::Tree(of)) => tree(client, printer, of).await,
        Some(TraceCommand::Verify(args)) => verify(client, printer, args).await,
        Some(TraceCommand::Export(args)) => export(client, printer, args).await,
    }
}

/// Reads events page by page.
pub(super) struct Pages<'a> {
    client: &'a Client,
    sandbox: String,
    query: GetEvents,
}

impl<'a> Pages<'a> {
    pub(super) fn new(client: &'a Client, of: TraceOf, follow: bool) -> Self {
        let query = GetEvents {
            from: 1,
            kinds: of.kind,
            exec: of.exec,
            since_ms: of.since.map(|since| now_ms().saturating_sub(since)),
            wait_ms: if follow { WAIT_MAX_MS } else { 0 },
        };
        Self { client, sandbox: of.sandbox.unwrap_or_default(), query }
    }

    /// The next page; empty at the end.
    pub(super) async fn next(&mut self) -> Result<Vec<TraceEvent>> {
        let page = self.client.events(&self.sandbox, &self.query).await?;
        self.query.from = page.next;
        Ok(page.items)
    }
}

async fn events(client: &Client, printer: Printer, of: TraceOf, follow: bool) -> Result<()> {
    let mut pages = Pages::new(client, of, follow);
    loop {
        let items = pages.next().await?;
        if items.is_empty() && !follow {
            return Ok(());
        }
        for event in items {
            if printer.is_json() {
                printer.stream_item(&event)?;
            } else {
                printer.line(&show::line(&event, &numbered(&event)?))?;
            }
        }
    }
}

/// The event as the recorder knows it.
pub(super) fn numbered(event: &TraceEvent) -> Result<Numbered> {
    let understood = serde_json::to_value(event).and_then(serde_json::from_value);
    understood.map_err(|error| {
        let why = format!("event {} cannot be understood: {error}", event.number);
        Failure::Plain(Error::new(Code::Internal, why).hint("this program may be older than the server"))
    })
}

async fn all(client: &Client, of: TraceOf) -> Result<Vec<Numbered>> {
    let mut pages = Pages::new(client, of, false);
    let mut all = Vec::new();
    loop {
        let items = pages.next().await?;
        if items.is_empty() {
            return Ok(all);
        }
        for event in &items {
            all.push(numbered(event)?);
        }
    }
}

async fn summary(client: &Client, printer: Printer, of: TraceOf) -> Result<()> {
    let mut summary = Summary::default();
    let mut pages = Pages::new(client, of, false);
    loop {
        let items = pages.next().await?;
        if items.is_empty() {
            break;
        }
        for event in &items {
            summary.add(&numbered(event)?.event);
        }
    }
    printer.result(&summary, || summary_text(&summary))
}

fn summary_text(summary: &Summary) -> String {
    let witnesses: Vec<_> = summary
        .witnesses
        .iter()
        .map(|(witness, count)| format!("{count} by {}", show::witness(*witness)))
        .collect();
    let mut text = format!("{} events ({})\n", summary.events, witnesses.join(", "));
    if summary.lost > 0 || summary.gaps > 0 {
        let (lost, gaps) = (summary.lost, summary.gaps);
        text = format!("{text}MISSING: {lost} events, and {gaps} gaps of unknown size\n");
    }
    let mut part = |head: [&str; 2], counts: &std::collections::BTreeMap<String, u64>| {
        if !counts.is_empty() {
            text.push('\n');
            text.push_str(&table(head, counts.iter().map(|(name, count)| [name.clone(), count.to_string()])));
            text.push('\n');
        }
    };
    part(["PROGRAM", "RAN"], &summary.programs);
    part(["FILE", "CHANGED"], &summary.files);
    part(["REFUSED", "TIMES"], &summary.refusals);
    part(["SECRET", "USED"], &summary.secrets);
    part(["CALLER", "CALLS"], &summary.callers);
    if !summary.hosts.is_empty() {
        let rows = summary.hosts.iter().map(|(host, traffic)| {
            [
                host.clone(),
                traffic.connections.to_string(),
                traffic.requests.to_string(),
                format_bytes(traffic.sent_bytes),
                format_bytes(traffic.received_bytes),
            ]
        });
        text.push('\n');
        text.push_str(&table(["HOST", "CONNECTIONS", "REQUESTS", "SENT", "RECEIVED"], rows));
    }
    text.trim_end().to_owned()
}

async fn tree(client: &Client, printer: Printer, of: TraceOf) -> Result<()> {
    let roots = atoll_recorder::tree(&all(client, of).await?);
    printer.list(&roots, || {
        let mut lines = Vec::new();
        for root in &roots {
            branch(&mut lines, root, 0);
        }
        lines.join("\n")
    })
}

fn branch(lines: &mut Vec<String>, node: &Node, depth: usize) {
    let indent = "  ".repeat(depth);
    let pid = node.pid.map_or_else(String::new, |pid| format!("{pid} "));
    let end = if node.end.is_empty() { String::new() } else { format!("  [{}]", node.end) };
    lines.push(format!("{indent}{pid}{}{end}", show::command(&node.argv)));
    for peer in &node.connections {
        lines.push(format!("{indent}  -> {peer}"));
    }
    for child in &node.children {
        branch(lines, child, depth + 1);
    }
}

async fn verify(client: &Client, printer: Printer, args: VerifyArgs) -> Result<()> {
    verified(printer, &client.verify_events(&args.sandbox).await?)
}

/// `atoll trace verify --dir`: from the files alone.
pub(super) fn verify_offline(printer: Printer, args: &VerifyArgs) -> Result<()> {
    let (Some(dir), Some(key)) = (&args.dir, &args.key) else {
        return Err(Failure::Usage("--dir and --key belong together".to_owned()));
    };
    let id = args.sandbox.parse().map_err(Failure::Plain)?;
    let report = atoll_recorder::verify(dir, &id, key, args.head.as_ref())
        .map_err(|error| Failure::io(format!("cannot read {}", dir.display()), error))?;
    verified(printer, &offline(&args.sandbox, key.to_string(), report))
}

fn verified(printer: Printer, report: &TraceReport) -> Result<()> {
    printer.result(report, || report_text(report))?;
    if report.findings.is_empty() {
        return Ok(());
    }
    let count = report.findings.len();
    Err(Failure::plain(Code::Internal, format!("the journal is not as it was written: {count} findings")))
}

fn offline(sandbox: &str, key: String, report: Report) -> TraceReport {
    let finding = |finding: atoll_recorder::Finding| atoll_api::TraceFinding {
        segment: finding.segment,
        offset: finding.offset,
        after: finding.after,
        what: finding.what,
    };
    TraceReport {
        sandbox: sandbox.to_owned(),
        key,
        events: report.events,
        first: report.first,
        last: report.last,
        signed: report.signed,
        ended: report.ended,
        head: report.head.map(|head| head.to_string()),
        gaps: report.gaps.into_iter().map(|(number, what)| atoll_api::TraceGap { number, what }).collect(),
        findings: report.findings.into_iter().map(finding).collect(),
    }
}

fn report_text(report: &TraceReport) -> String {
    let mut lines = vec![
        format!("events  {} to {}, signed to {}", report.first, report.last, report.signed),
        format!("key     {}", report.key),
        format!("head    {}", report.head.as_deref().unwrap_or("nothing is signed yet")),
        format!(
            "end     {}",
            if report.ended { "signed: nothing is missing at the end" } else { "open: it may go on" }
        ),
    ];
    lines.extend(report.gaps.iter().map(|gap| format!("gap     at {}: {}", gap.number, gap.what)));
    for found in &report.findings {
        let atoll_api::TraceFinding { segment, offset, after, what } = found;
        lines.push(format!("BAD     after event {after} (byte {offset} of {segment}): {what}"));
    }
    if report.findings.is_empty() {
        lines.push("ok      everything is as it was written".to_owned());
    }
    lines.join("\n")
}

async fn export(client: &Client, printer: Printer, args: ExportArgs) -> Result<()> {
    let mut pages = Pages::new(client, args.of, false);
    loop {
        let items = pages.next().await?;
        if items.is_empty() {
            return Ok(());
        }
        for event in &items {
            if args.ocsf {
                printer.stream_item(&atoll_recorder::ocsf::convert(&event.sandbox, &numbered(event)?))?;
            } else {
                printer.stream_item(event)?;
            }
        }
    }
}
