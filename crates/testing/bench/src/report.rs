//! Tables, on standard output as they come and in a file at the end.

use std::fmt::Write as _;
use std::time::Duration;

use crate::stats::{Samples, millis};

/// Everything that was measured, as Markdown.
#[derive(Debug)]
pub(crate) struct Report {
    text: String,
}

impl Report {
    /// Begins with a description of the machine.
    pub(crate) fn new() -> Self {
        let mut report = Self { text: String::new() };
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let load = read("/proc/loadavg");
        let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
        report.line("# Measurements\n");
        report.line(&format!(
            "Kernel {}, {cores} cores{}, load average at the start {load}. Times in milliseconds. \
             *CPU* is what the server process used for one operation, user and system together.",
            read("/proc/sys/kernel/osrelease").trim(),
            model.replace([':', '\t'], "").trim_end(),
        ));
        report
    }

    /// A new section.
    pub(crate) fn section(&mut self, title: &str) {
        self.line(&format!("\n## {title}\n"));
    }

    /// The head of a table of [`Self::row`]s.
    pub(crate) fn table(&mut self) {
        self.line("| what | median | p90 | p99 | min | n | CPU |");
        self.line("|---|---:|---:|---:|---:|---:|---:|");
    }

    /// One operation.
    pub(crate) fn row(&mut self, what: &str, samples: &Samples, cpu: Option<Duration>) {
        let at = |share| millis(samples.percentile(share));
        let cpu = cpu.map_or_else(|| "–".to_owned(), millis);
        self.line(&format!(
            "| {what} | **{}** | {} | {} | {} | {} | {cpu} |",
            at(50),
            at(90),
            at(99),
            millis(samples.min()),
            samples.len(),
        ));
    }

    /// A line of text.
    #[expect(clippy::print_stdout, reason = "this is what the program is for")]
    pub(crate) fn line(&mut self, line: &str) {
        println!("{line}");
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// The whole.
    pub(crate) fn markdown(&self) -> &str {
        &self.text
    }
}
