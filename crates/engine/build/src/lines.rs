//! Physical lines to logical ones: directives, comments, continuations, here-documents.

use atoll_core::limits::BUILD_INSTRUCTIONS_MAX_COUNT;
use atoll_core::{Code, Error, Result};

use crate::place::Place;

/// Most here-documents of one instruction.
const HEREDOCS_MAX_COUNT: usize = 16;

/// An instruction with everything that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Continued lines joined.
    pub(crate) text: String,
    /// Where pieces of `text` come from: offset, line, column; ascending.
    origins: Vec<(usize, u32, u32)>,
    /// Here-documents, in order.
    pub(crate) heredocs: Vec<Heredoc>,
}

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heredoc {
    /// The word that ends it.
    pub(crate) name: String,
    /// Everything before that word, with line breaks.
    pub(crate) body: String,
    /// Whether variables in it stand for themselves.
    pub(crate) quoted: bool,
    /// Whether leading tabs are taken off.
    pub(crate) strip_tabs: bool,
}

impl Line {
    /// Where the byte at `offset` of the text was written.
    pub(crate) fn place(&self, offset: usize) -> Place {
        let at = self.origins.partition_point(|(start, ..)| *start <= offset).saturating_sub(1);
        let Some((start, line, column)) = self.origins.get(at).copied() else {
            return Place::Line { line: 1, column: 1 };
        };
        let before = self.text.get(start..offset).map_or(0, |text| text.chars().count());
        Place::Line { line, column: column.saturating_add(u32::try_from(before).unwrap_or(u32::MAX)) }
    }
}

/// Logical lines, and the escape character.
pub(crate) fn logical(text: &str) -> Result<(Vec<Line>, char)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let physical: Vec<&str> = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
    let escape = directives(&physical)?;
    let mut lines = Vec::new();
    let mut at = 0;
    while at < physical.len() {
        if is_blank_or_comment(physical[at]) {
            at += 1;
            continue;
        }
        if lines.len() == BUILD_INSTRUCTIONS_MAX_COUNT {
            let place = Place::Line { line: number(at), column: 1 };
            let message = format_args!("there are more than {BUILD_INSTRUCTIONS_MAX_COUNT} instructions");
            return Err(place.error(Code::TooLarge, message).hint("join some: RUN a && b"));
        }
        let mut line = joined(&physical, &mut at, escape);
        take_heredocs(&mut line, &physical, &mut at)?;
        lines.push(line);
    }
    Ok((lines, escape))
}

fn number(index: usize) -> u32 {
    u32::try_from(index + 1).unwrap_or(u32::MAX)
}

fn is_blank_or_comment(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// `# escape=` on the first lines. Other directives mean nothing here.
fn directives(lines: &[&str]) -> Result<char> {
    let mut escape = '\\';
    for (index, line) in lines.iter().enumerate() {
        let Some((key, value)) = line.trim().strip_prefix('#').and_then(|rest| rest.split_once('=')) else {
            break;
        };
        let key = key.trim().to_ascii_lowercase();
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric()) {
            break;
        }
        if key == "escape" {
            escape = match value.trim() {
                "\\" => '\\',
                "`" => '`',
                _ => {
                    let place = Place::Line { line: number(index), column: 1 };
                    return Err(place.invalid("the escape character is neither \\ nor `"));
                }
            };
        }
    }
    Ok(escape)
}

/// The logical line that begins at `at`, which is moved behind it.
fn joined(physical: &[&str], at: &mut usize, escape: char) -> Line {
    let mut line = Line { text: String::new(), origins: Vec::new(), heredocs: Vec::new() };
    let mut first = true;
    while let Some(raw) = physical.get(*at) {
        *at += 1;
        // Inside a continuation comments and empty lines are as if they were not there.
        if !first && is_blank_or_comment(raw) {
            continue;
        }
        let piece = if first { raw.trim_start() } else { raw };
        let column = u32::try_from(raw.chars().count() - piece.chars().count() + 1).unwrap_or(u32::MAX);
        line.origins.push((line.text.len(), number(*at - 1), column));
        first = false;
        match piece.trim_end_matches([' ', '\t']).strip_suffix(escape) {
            Some(kept) => line.text.push_str(kept),
            None => {
                line.text.push_str(piece.trim_end());
                break;
            }
        }
    }
    line
}

/// Reads the here-documents that a line asks for.
fn take_heredocs(line: &mut Line, physical: &[&str], at: &mut usize) -> Result<()> {
    let keyword = line.text.split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    if !["RUN", "COPY", "ADD"].contains(&keyword.as_str()) {
        return Ok(());
    }
    let marks = marks(&line.text);
    if marks.len() > HEREDOCS_MAX_COUNT {
        return Err(line.place(0).invalid(format_args!("more than {HEREDOCS_MAX_COUNT} here-documents")));
    }
    for (offset, mut heredoc) in marks {
        loop {
            let Some(raw) = physical.get(*at) else {
                return Err(unclosed(line.place(offset), &heredoc.name));
            };
            *at += 1;
            let text = if heredoc.strip_tabs { raw.trim_start_matches('\t') } else { raw };
            if text == heredoc.name {
                break;
            }
            heredoc.body.push_str(text);
            heredoc.body.push('\n');
        }
        line.heredocs.push(heredoc);
    }
    Ok(())
}

fn unclosed(place: Place, name: &str) -> Error {
    place
        .invalid(format_args!("the here-document '{}' has no end", atoll_core::error::shorten(name)))
        .hint("write its word alone on a line")
}

/// `<<WORD`, `<<-WORD`, `<<"WORD"` outside of quotes, with their offsets. `<<<` is something else.
pub(crate) fn marks(text: &str) -> Vec<(usize, Heredoc)> {
    let mut found = Vec::new();
    let mut quote = None;
    let mut at = 0;
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (_, b'\\') => at += 1,
            (None, b'\'' | b'"') => quote = Some(bytes[at]),
            (Some(open), byte) if open == byte => quote = None,
            (None, b'<') if bytes[at..].starts_with(b"<<<") => at += 2,
            (None, b'<') if bytes[at..].starts_with(b"<<") => {
                if let Some((heredoc, length)) = mark(&text[at + 2..]) {
                    found.push((at, heredoc));
                    at += 1 + length;
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// What follows `<<`, and how long it is.
fn mark(rest: &str) -> Option<(Heredoc, usize)> {
    let strip_tabs = rest.starts_with('-');
    let mut at = usize::from(strip_tabs);
    let quote = rest[at..].chars().next().filter(|c| matches!(c, '\'' | '"'));
    at += usize::from(quote.is_some());
    let length = rest[at..].bytes().take_while(|b| b.is_ascii_alphanumeric() || b"_.-/".contains(b)).count();
    let name = &rest[at..at + length];
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '/')) {
        return None;
    }
    at += length;
    if let Some(quote) = quote {
        rest[at..].strip_prefix(quote)?;
        at += 1;
    }
    let heredoc = Heredoc { name: name.to_owned(), body: String::new(), quoted: quote.is_some(), strip_tabs };
    Some((heredoc, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_keep_their_places() {
        let text = "# escape=\\\n\n  FROM a \n# c\nRUN one \\\n  # comment\n\n  two\\  \n three\nENV A=b\n";
        let (lines, escape) = logical(text).unwrap();
        assert_eq!(escape, '\\');
        let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["FROM a", "RUN one   two three", "ENV A=b"]);
        assert_eq!(lines[0].place(0), Place::Line { line: 3, column: 3 });
        assert_eq!(lines[1].place(10), Place::Line { line: 8, column: 3 });
        assert_eq!(lines[1].place(14), Place::Line { line: 9, column: 2 });
    }

    #[test]
    fn heredocs() {
        let text = "FROM a\nRUN <<-EOF cat <<'X' >f\n\tone\n\tEOF\n$two\nX\nRUN echo '<<NO' $((1<<2)) <<<x\n";
        let (lines, _) = logical(text).unwrap();
        let bodies: Vec<_> = lines[1].heredocs.iter().map(|doc| (doc.body.as_str(), doc.quoted)).collect();
        assert_eq!(bodies, [("one\n", false), ("$two\n", true)]);
        assert!(lines[2].heredocs.is_empty());
        let error = logical("FROM a\nRUN x <<EOF\nnever").unwrap_err();
        assert!(error.message.starts_with("line 2, column 7: "), "{error}");
    }

    #[test]
    fn other_escapes() {
        let (lines, escape) = logical("# syntax=x\n# escape=`\nRUN a `\nb\\").unwrap();
        assert_eq!((escape, lines[0].text.as_str()), ('`', "RUN a b\\"));
        assert!(logical("# escape=x\nFROM a").is_err());
    }
}
