//! Two results beside each other: what an earlier run wrote, and this one.
//!
//! Only the tables of [`Report::row`](crate::report::Report::row) are compared. A row is known by its section and its first column, so a
//! figure that is measured otherwise gets another name.

use std::collections::BTreeMap;

/// A row's figures, by the name of their column.
type Figures = BTreeMap<String, f64>;

/// The columns that are compared.
const COLUMNS: [&str; 3] = ["median", "p99", "CPU"];

/// The table of ratios; `None` when the two have no row in common.
pub(crate) fn ratios(before: &str, now: &str) -> Option<String> {
    let before: BTreeMap<_, _> = rows(before).into_iter().collect();
    let mut lines = Vec::new();
    for (name, figures) in rows(now) {
        let Some(earlier) = before.get(&name) else { continue };
        let cells = COLUMNS.map(|column| match (earlier.get(column), figures.get(column)) {
            (Some(was), Some(is)) if *was > 0.0 => format!("{was} → {is} (×{:.2})", is / was),
            _ => "–".to_owned(),
        });
        let (section, what) = name;
        lines.push(format!("| {section}: {what} | {} |", cells.join(" | ")));
    }
    if lines.is_empty() {
        return None;
    }
    let head = format!("| what | {} |\n|---|{}", COLUMNS.join(" | "), "---:|".repeat(COLUMNS.len()));
    Some(format!("{head}\n{}", lines.join("\n")))
}

/// All rows with figures, each with its section and name, in order.
fn rows(text: &str) -> Vec<((String, String), Figures)> {
    let (mut section, mut head) = (String::new(), Vec::new());
    let mut rows = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        }
        let Some(inside) = line.strip_prefix("| ").and_then(|rest| rest.strip_suffix(" |")) else {
            if !line.starts_with("|---") {
                head.clear();
            }
            continue;
        };
        let cells: Vec<&str> = inside.split(" | ").map(|cell| cell.trim().trim_matches('*')).collect();
        if head.is_empty() {
            head = cells;
            continue;
        }
        let figures: Figures = head
            .iter()
            .zip(&cells)
            .skip(1)
            .filter_map(|(column, cell)| Some(((*column).to_owned(), cell.parse().ok()?)))
            .collect();
        if figures.contains_key("median") {
            rows.push(((section.clone(), cells[0].to_owned()), figures));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# Measurements\n\n## Create\n\n| what | median | p90 | p99 | min | n | CPU |\n\
        |---|---:|---:|---:|---:|---:|---:|\n| create | **8.0** | 9 | 10.0 | 1 | 300 | – |\n\
        | gone | **1.0** | 1 | 1 | 1 | 1 | – |\n\nand a sentence\n\n## Runs\n\n\
        | what | median | p90 | p99 | min | n | CPU |\n|---|---:|---:|---:|---:|---:|---:|\n\
        | create | **2.0** | 3 | 4.0 | 1 | 300 | 1.5 |\n";

    #[test]
    fn rows_are_found_again_by_section_and_name() {
        let now = BEFORE.replace("**8.0**", "**4.0**").replace("gone", "new").replace("1.5", "3.0");
        let table = ratios(BEFORE, &now).unwrap();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| Create: create | 8 → 4 (×0.50) | 10 → 10 (×1.00) | – |",
                "| Runs: create | 2 → 2 (×1.00) | 4 → 4 (×1.00) | 1.5 → 3 (×2.00) |",
            ]
        );
    }

    #[test]
    fn nothing_in_common_is_no_table() {
        assert_eq!(ratios("", BEFORE), None);
        assert_eq!(ratios(BEFORE, "no tables"), None);
    }
}
