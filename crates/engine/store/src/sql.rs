//! Parts of SQL texts that several tables' queries have. Values go in as placeholders only.

use std::fmt::Write as _;

use atoll_core::id::NodeId;

use crate::db::{Row, Value, args};
use crate::error::StoreError;
use crate::record::Cursor;

/// Leaves out what is on other nodes.
pub(crate) fn here(sql: &mut String, node: Option<&NodeId>, values: &mut Vec<Value>) {
    if let Some(node) = node {
        values.push(node.as_str().into());
        add(sql, format_args!(" AND node = ${}", values.len()));
    }
}

/// Appends text that this crate wrote; values go in as placeholders only.
pub(crate) fn add(sql: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = sql.write_fmt(text);
}

/// `column IN ($n, …)`, with the choices appended to `values`. No choice matches nothing.
pub(crate) fn any_of<'a>(
    column: &'static str,
    choices: impl Iterator<Item = &'a str>,
    values: &mut Vec<Value>,
) -> String {
    let mut sql = String::new();
    for choice in choices {
        values.push(choice.into());
        let comma = if sql.is_empty() { "" } else { ", " };
        add(&mut sql, format_args!("{comma}${}", values.len()));
    }
    if sql.is_empty() { "1 = 0".to_owned() } else { format!("{column} IN ({sql})") }
}

/// Appends cursor, order and limit of a listing. One more row than asked tells whether more follow. A row whose time
/// cannot be read has no place in the order: it is in no page, and [`next_page`] can always say where the next one starts.
pub(crate) fn newest_first(sql: &mut String, values: &mut Vec<Value>, after: Option<&Cursor>, limit: u32) {
    sql.push_str(" AND created_ms BETWEEN 0 AND 9223372036854775807");
    if let Some(cursor) = after {
        values.extend(args![cursor.created_ms(), cursor.id()]);
        add(sql, format_args!(" AND (created_ms, id) < (${}, ${})", values.len() - 1, values.len()));
    }
    values.push((limit + 1).into());
    add(sql, format_args!(" ORDER BY created_ms DESC, id DESC LIMIT ${}", values.len()));
}

/// Cuts the extra row off and makes the cursor, of rows that [`newest_first`] asked for.
pub(crate) fn next_page(rows: &mut Vec<Row>, limit: u32) -> Result<Option<Cursor>, StoreError> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = rows.len() > limit;
    rows.truncate(limit);
    let cursor = |row: &Row| Ok(Cursor::new(row.uint("created_ms")?, row.text("id")?));
    let last = rows.last().filter(|_| more);
    last.map(|row| row.decode("a listing", "id", cursor)).transpose()
}
