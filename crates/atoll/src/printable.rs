//! What text goes through before it meets a terminal.
//!
//! Much of what this program prints was chosen by others: arguments of commands in sandboxes, names, messages, lines of
//! files. A terminal obeys some characters instead of showing them, and others make it show a text in another order
//! than it has. In text these are replaced by U+FFFD, in JSON they are written as escapes, which mean the same.
//!
//! The output of commands in sandboxes does not come here: as with docker it is passed on as it is.

use std::fmt::Write as _;

/// In the place of what is not shown.
const REPLACEMENT: char = '\u{fffd}';

/// Whether a terminal would obey a character, or turn the text around it: all control characters but line breaks and
/// tabs, those above U+007F too, and the controls of the direction of text.
pub(crate) fn is_hostile(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    turns || (c.is_control() && c != '\n' && c != '\t')
}

/// A text without them.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if is_hostile(c) { REPLACEMENT } else { c }).collect()
}

/// A document of JSON with escapes in their place. It means the same: outside of strings JSON has none of them, and
/// inside each is a character of its own, never the second half of an escape.
pub(crate) fn escaped(json: String) -> String {
    if !json.contains(is_hostile) {
        return json;
    }
    let mut text = String::with_capacity(json.len() + json.len() / 4);
    for c in json.chars() {
        if is_hostile(c) {
            // One escape is enough: all of them are below U+10000.
            let _ = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}

/// An error of the parser of arguments, which is text with styles in it, without anything else that a terminal obeys.
/// The styles stay if `color`.
pub(crate) fn styled(text: &str, color: bool) -> String {
    /// What the parser's styles are made of: off, bold, underlined, red, green, yellow.
    const STYLES: [&str; 6] = ["\x1b[0m", "\x1b[1m", "\x1b[4m", "\x1b[31m", "\x1b[32m", "\x1b[33m"];
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\x1b') {
        let (before, from) = rest.split_at(at);
        cleaned.push_str(&clean(before));
        let style = STYLES.into_iter().find(|style| from.starts_with(style));
        match style {
            Some(style) if color => cleaned.push_str(style),
            Some(_) => {}
            None => cleaned.push(REPLACEMENT),
        }
        rest = from.split_at(style.map_or(1, str::len)).1;
    }
    cleaned.push_str(&clean(rest));
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_drives_the_terminal() {
        assert_eq!(clean("a\x1b[31m\x07b\nc\td"), "a\u{fffd}[31m\u{fffd}b\nc\td");
        for c in ['\u{7f}', '\u{9b}', '\u{9d}', '\u{61c}', '\u{200e}', '\u{202e}', '\u{2066}', '\u{2069}'] {
            assert_eq!(clean(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        for text in ["é 漢字 🙂 \u{200d} עברית", ""] {
            assert_eq!(clean(text), text);
        }
    }

    #[test]
    fn json_means_the_same() {
        let hostile: String = (0..=0x20ff).filter_map(char::from_u32).collect();
        let value = json!({ "a\u{9b}31m\\": ["\\\u{7f}\\u\u{202e}\"", hostile, "漢"], "plain": 1 });
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = escaped(text.clone());
            assert!(!escaped.contains(is_hostile) && text.contains(is_hostile), "{escaped:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        }
        assert_eq!(escaped("\"\u{9b}\u{2069}\"".to_owned()), "\"\\u009b\\u2069\"");
        assert_eq!(escaped("{\n  \"a\": 1\n}".to_owned()), "{\n  \"a\": 1\n}");
    }

    #[test]
    fn errors_have_the_styles_of_their_parser_and_no_others() {
        let error = clap::Command::new("x")
            .arg(clap::Arg::new("n").long("n").value_parser(clap::value_parser!(u8)))
            .try_get_matches_from(["x", "--n", "\x1b]0;t\x07\u{9b}2J\x1b[8m"])
            .unwrap_err();
        let text = error.render().ansi().to_string();
        assert!(text.contains("\x1b]0;t\x07"), "the parser passes them on: {text:?}");
        let plain = styled(&text, false);
        assert!(!plain.contains(is_hostile), "{plain:?}");
        assert!(
            plain.contains("'\u{fffd}]0;t\u{fffd}\u{fffd}2J\u{fffd}[8m'") && plain.starts_with("error: "),
            "{plain:?}"
        );
        let colored = styled(&text, true);
        assert!(colored.contains("\x1b[31m") && colored.contains("\x1b[0m"), "{colored:?}");
        assert!(!colored.contains("\x1b]") && !colored.contains("\x1b[8m"), "{colored:?}");
    }
}
