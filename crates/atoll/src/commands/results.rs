//! Results of cells: shown as text, and saved as files.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::output::Printer;

/// Kinds of data that are files, the best first: how such a file ends, and whether the data is base64.
const FILES: [(&str, &str, bool); 11] = [
    ("image/png", "png", true),
    ("image/jpeg", "jpeg", true),
    ("application/pdf", "pdf", true),
    ("image/svg+xml", "svg", false),
    ("text/html", "html", false),
    ("text/markdown", "md", false),
    ("text/latex", "tex", false),
    ("application/json", "json", false),
    ("application/javascript", "js", false),
    ("application/vnd.atoll.chart+json", "chart.json", false),
    ("application/vnd.atoll.table+json", "table.json", false),
];
/// Kinds that are shown where there is no plain text.
const SHOWN: [&str; 3] = ["text/plain", "text/markdown", "text/latex"];

/// The results of one cell.
#[derive(Debug)]
pub(super) struct Results {
    directory: Option<PathBuf>,
    count: usize,
}

impl Results {
    pub(super) fn new(directory: Option<&Path>) -> Self {
        Self { directory: directory.map(Path::to_owned), count: 0 }
    }

    /// Shows a result, and saves it where that was asked for.
    pub(super) async fn take(&mut self, printer: Printer, result: &Value) -> Result<()> {
        self.count += 1;
        let empty = serde_json::Map::new();
        let data = result.get("data").and_then(Value::as_object).unwrap_or(&empty);
        let text = SHOWN.iter().find_map(|kind| data.get(*kind)?.as_str());
        if !printer.is_json() {
            match text {
                Some(text) => printer.line(text)?,
                None => {
                    let kinds: Vec<_> = data.keys().map(String::as_str).collect();
                    printer.note(&format!("[{}]", kinds.join(", ")));
                }
            }
        }
        match &self.directory {
            Some(directory) => {
                for (name, bytes) in files(self.count, data) {
                    save(printer, directory, &name, bytes).await?;
                }
            }
            None if data.contains_key("image/png") || data.contains_key("image/jpeg") => {
                printer.note("[a picture: --save DIR keeps it]");
            }
            None => {}
        }
        Ok(())
    }
}

/// The files that a result is. This program names them; the sandbox has no say in that.
fn files(number: usize, data: &serde_json::Map<String, Value>) -> Vec<(String, Vec<u8>)> {
    let file = |(kind, end, is_base64): &(&str, &str, bool)| {
        let bytes = match data.get(*kind)? {
            Value::String(text) if *is_base64 => {
                // As Jupyter writes it: with line breaks.
                let text: String = text.split_ascii_whitespace().collect();
                STANDARD.decode(text).ok()?
            }
            Value::String(text) => text.clone().into_bytes(),
            other => serde_json::to_vec_pretty(other).ok()?,
        };
        Some((format!("{number}.{end}"), bytes))
    };
    FILES.iter().filter_map(file).collect()
}

async fn save(printer: Printer, directory: &Path, name: &str, bytes: Vec<u8>) -> Result<()> {
    let path = directory.join(name);
    let failed = |error| Failure::io(format!("cannot write {}", path.display()), error);
    tokio::fs::create_dir_all(directory).await.map_err(failed)?;
    tokio::fs::write(&path, bytes).await.map_err(failed)?;
    printer.note(&format!("saved {}", path.display()));
    Ok(())
}

/// A traceback without the colours that kernels give it.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\u{1b}' && rest.next_if_eq(&'[').is_some() {
            // Parameters, up to the letter that says what they are of.
            while rest.next_if(|c| !('\u{40}'..='\u{7e}').contains(c)).is_some() {}
            rest.next();
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn colours_go() {
        assert_eq!(plain("\u{1b}[0;31mValueError\u{1b}[0m: x\n\u{1b}"), "ValueError: x\n\u{1b}");
        assert_eq!(plain("\u{1b}[31"), "");
        assert_eq!(plain("ö"), "ö");
    }

    #[test]
    fn results_are_files() {
        let data = json!({
            "image/png": "aGk=\n", "text/html": "<b>", "application/json": {"a": 1}, "image/jpeg": "no base64!",
            "../../evil": "x", "text/plain": "<Figure>",
        });
        let names: Vec<_> = files(3, data.as_object().unwrap()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["3.png", "3.html", "3.json"]);
        assert_eq!(files(1, data.as_object().unwrap())[0].1, b"hi");
    }
}
