//! Extended headers: records `<length> <key>=<value>\n`, where the length counts the whole record and values are binary.

use crate::error::{BackupError, Result};

/// Records in order.
pub(crate) type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Appends a record.
pub(crate) fn push(into: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // A space, an equals sign and a line's end; and the length's own digits, which may become one more by it.
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    into.extend_from_slice(length.to_string().as_bytes());
    into.push(b' ');
    into.extend_from_slice(key);
    into.push(b'=');
    into.extend_from_slice(value);
    into.push(b'\n');
}

/// Reads all records.
///
/// # Errors
/// [`BackupError::Invalid`].
pub(crate) fn parse(mut data: &[u8]) -> Result<Records> {
    let bad = || BackupError::Invalid("it has a malformed extended header".to_owned());
    let mut records = Records::new();
    while !data.is_empty() {
        let space = data.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
        let length =
            number(&data[..space]).and_then(|length| usize::try_from(length).ok()).ok_or_else(bad)?;
        let record = data.get(space + 1..length).ok_or_else(bad)?;
        let (b'\n', record) = record.split_last().ok_or_else(bad)? else { return Err(bad()) };
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        data = &data[length..];
    }
    Ok(records)
}

/// A number as these headers have it: decimal digits.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_whatever_is_in_them() {
        for length in (0..30).chain(85..110).chain(985..1010) {
            let value = vec![b'\n'; length];
            let mut data = Vec::new();
            push(&mut data, b"key", &value);
            push(&mut data, b"k", b"a=\0 b");
            let records = parse(&data).unwrap();
            assert_eq!(records, [(b"key".to_vec(), value), (b"k".to_vec(), b"a=\0 b".to_vec())], "{length}");
        }
    }

    #[test]
    fn malformed_ones_are_refused() {
        for bad in [&b"99 a=b\n"[..], b"x a=b\n", b"6 ab\n\n", b"5 a=b", b"1 a=b\n", b"0 a=b\n", b"+6 a=b\n"]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
