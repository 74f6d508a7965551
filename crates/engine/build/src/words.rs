//! Words of an instruction, and the variables in them.

use atoll_core::limits::ENV_VALUE_MAX_BYTES;

/// Nested `${a:-${b:-…}}` deeper than this is refused.
const DEPTH_MAX: u32 = 16;

/// A word as it was written, with its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    pub(crate) offset: usize,
    pub(crate) text: &'a str,
}

/// Splits at spaces outside of quotes. Quotes and escapes stay in the words.
pub(crate) fn split(text: &str, base: usize, escape: char) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if quote.is_none() && c.is_whitespace() {
            if let Some(from) = start.take() {
                words.push(Word { offset: base + from, text: &text[from..at] });
            }
            continue;
        }
        start.get_or_insert(at);
        match quote {
            _ if c == escape && quote != Some('\'') => drop(chars.next()),
            None if c == '\'' || c == '"' => quote = Some(c),
            Some(open) if open == c => quote = None,
            _ => {}
        }
    }
    if let Some(from) = start {
        words.push(Word { offset: base + from, text: &text[from..] });
    }
    words
}

/// Puts variables in and takes quotes and escapes off.
///
/// # Errors
/// What is wrong, as a sentence.
pub(crate) fn expand(
    text: &str,
    escape: char,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let chars: Vec<char> = text.chars().collect();
    let mut reader = Reader { chars: &chars, at: 0, escape, variable };
    let out = reader.word(None, 0)?;
    if out.contains('\0') {
        return Err("the value contains NUL".to_owned());
    }
    Ok(out)
}

/// Looked at before each character and variable: a value is longer than its name.
fn check_length(out: &str) -> Result<(), String> {
    if out.len() > ENV_VALUE_MAX_BYTES { Err("the value is longer than 120 KiB".to_owned()) } else { Ok(()) }
}

struct Reader<'a> {
    chars: &'a [char],
    at: usize,
    escape: char,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.chars.get(self.at).copied();
        self.at += usize::from(c.is_some());
        c
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    /// Up to `stop`, which is read, or to the end if there is none.
    fn word(&mut self, stop: Option<char>, depth: u32) -> Result<String, String> {
        if depth > DEPTH_MAX {
            return Err(format!("variables are nested more than {DEPTH_MAX} levels deep"));
        }
        let mut out = String::new();
        loop {
            check_length(&out)?;
            match self.next() {
                None if stop.is_some() => return Err("a '${' has no '}'".to_owned()),
                None => return Ok(out),
                c if c == stop => return Ok(out),
                Some('\'') => self.single(&mut out)?,
                Some('"') => self.double(&mut out, depth)?,
                Some('$') => out.push_str(&self.dollar(depth)?),
                Some(c) if c == self.escape => out.extend(self.next()),
                Some(c) => out.push(c),
            }
        }
    }

    fn single(&mut self, out: &mut String) -> Result<(), String> {
        loop {
            match self.next() {
                None => return Err("a ' has no end".to_owned()),
                Some('\'') => return Ok(()),
                Some(c) => out.push(c),
            }
        }
    }

    fn double(&mut self, out: &mut String, depth: u32) -> Result<(), String> {
        loop {
            check_length(out)?;
            match self.next() {
                None => return Err("a \" has no end".to_owned()),
                Some('"') => return Ok(()),
                Some('$') => out.push_str(&self.dollar(depth)?),
                Some(c) if c == self.escape => match self.next() {
                    None => return Err("a \" has no end".to_owned()),
                    Some(next) if matches!(next, '"' | '$') || next == self.escape => out.push(next),
                    Some(next) => out.extend([c, next]),
                },
                Some(c) => out.push(c),
            }
        }
    }

    /// What follows a `$`.
    fn dollar(&mut self, depth: u32) -> Result<String, String> {
        if self.peek() == Some('{') {
            self.at += 1;
            return self.braces(depth);
        }
        let name = self.name();
        // A `$` before anything else stands for itself.
        if name.is_empty() { Ok("$".to_owned()) } else { Ok((self.variable)(&name).unwrap_or_default()) }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
            self.at += 1;
        }
        name
    }

    /// `${name}`, `${name:-word}` and its kin, behind the brace.
    fn braces(&mut self, depth: u32) -> Result<String, String> {
        let name = self.name();
        if name.is_empty() {
            return Err("a '${' has no name".to_owned());
        }
        let value = (self.variable)(&name);
        let (colon, operator) = match self.next() {
            Some('}') => return Ok(value.unwrap_or_default()),
            Some(':') => (true, self.next()),
            other => (false, other),
        };
        let Some(operator) = operator.filter(|c| matches!(c, '-' | '+' | '?')) else {
            return Err(format!("'${{{name}' is followed by something else than }}, :-, :+ or :?"));
        };
        let word = self.word(Some('}'), depth + 1)?;
        let set = value.filter(|value| !colon || !value.is_empty());
        match (operator, set) {
            ('-', Some(value)) | ('?', Some(value)) => Ok(value),
            ('-', None) | ('+', Some(_)) => Ok(word),
            ('+', None) => Ok(String::new()),
            _ if word.is_empty() => Err(format!("the variable '{name}' is not set")),
            _ => Err(format!("the variable '{name}' is not set: {}", atoll_core::error::shorten(&word))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn variable(name: &str) -> Option<String> {
        match name {
            "A" => Some("a".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables() {
        for (text, want) in [
            ("$A-${A}b", "a-ab"),
            ("\\$A '$A' \"$A\"", "$A $A a"),
            ("${A:-x}${B:-x}${B-y}${EMPTY:-z}${EMPTY-z}", "axyz"),
            ("${A:+x}${B:+x}${EMPTY+y}", "xy"),
            ("${B:-${A}${C:-'}'}}", "a}"),
            ("$ $! 1$", "$ $! 1$"),
            ("\"a\\n\\\"\"", "a\\n\""),
        ] {
            assert_eq!(expand(text, '\\', &variable).as_deref(), Ok(want), "{text}");
        }
        for bad in ["${", "${}", "${A", "${A:x}", "'", "\"", "${B:?no}", "${A#x}"] {
            assert!(expand(bad, '\\', &variable).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_is_bounded_however_it_is_written() {
        let asked = std::cell::Cell::new(0);
        let long = |_: &str| {
            asked.set(asked.get() + 1);
            Some("x".repeat(ENV_VALUE_MAX_BYTES))
        };
        let many = "$A".repeat(1000);
        for text in [many.clone(), format!("\"{many}\""), format!("${{B:+\"{many}\"}}")] {
            asked.set(0);
            let refused = expand(&text, '\\', &long).unwrap_err();
            assert_eq!(refused, "the value is longer than 120 KiB");
            assert!(asked.get() <= 3, "{} values were put in", asked.get());
        }
        assert_eq!(expand("\"$A\"", '\\', &long).map(|value| value.len()), Ok(ENV_VALUE_MAX_BYTES));
    }

    #[test]
    fn words() {
        let texts = |text| split(text, 0, '\\').into_iter().map(|word| word.text).collect::<Vec<_>>();
        assert_eq!(texts(" a  b=\"c d\" e\\ f 'g \"h' "), ["a", "b=\"c d\"", "e\\ f", "'g \"h'"]);
        assert_eq!(split("x  yy", 10, '\\')[1].offset, 13);
    }

    proptest! {
        #[test]
        fn never_panics(text in "[\\PC$'\"{}:\\\\ -]{0,60}") {
            drop(expand(&text, '\\', &variable));
            for word in split(&text, 0, '\\') {
                prop_assert_eq!(&text[word.offset..word.offset + word.text.len()], word.text);
            }
        }
    }
}
