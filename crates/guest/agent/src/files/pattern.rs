//! Patterns of paths: `*`, `?` and `[…]` within a name, `**` for any number of names.
//!
//! A pattern is walked like an automaton, one name of the path at a time, keeping every place in it where the path so
//! far may be. So matching takes at most time proportional to pattern times path, and a directory below which nothing
//! can match is not entered.

/// Most names in a pattern.
const PARTS_MAX: usize = 128;

/// A pattern, ready to match.
#[derive(Debug)]
pub(crate) struct Pattern {
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    /// `**`
    Any,
    Name(Vec<Token>),
}

#[derive(Debug)]
enum Token {
    /// `*`
    Some,
    /// `?`
    One,
    Byte(u8),
    /// `[…]`: ranges, and whether these are the characters that do not match.
    Set(Vec<(u8, u8)>, bool),
}

/// Where in the pattern a path may be, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places(Vec<usize>);

impl Places {
    /// Whether a path below this one can match.
    pub(crate) fn leads_on(&self, pattern: &Pattern) -> bool {
        self.0.iter().any(|place| *place < pattern.parts.len())
    }

    /// Whether this path matches.
    pub(crate) fn is_match(&self, pattern: &Pattern) -> bool {
        self.0.last() == Some(&pattern.parts.len())
    }
}

impl Pattern {
    /// Reads a pattern; an empty one matches everything. `None` when it has too many names.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let text = if text.is_empty() { "**" } else { text };
        let names = text.split('/').filter(|name| !name.is_empty() && *name != ".");
        let mut parts: Vec<Part> = Vec::new();
        for name in names {
            match name {
                // Twice is the same as once.
                "**" if matches!(parts.last(), Some(Part::Any)) => {}
                "**" => parts.push(Part::Any),
                name => parts.push(Part::Name(tokens(name.as_bytes()))),
            }
        }
        (parts.len() <= PARTS_MAX).then_some(Self { parts })
    }

    /// Where every path begins.
    pub(crate) fn start(&self) -> Places {
        self.places(vec![0])
    }

    /// One name further.
    pub(crate) fn step(&self, from: &Places, name: &[u8]) -> Places {
        let mut next = Vec::with_capacity(from.0.len() + 1);
        for place in &from.0 {
            match self.parts.get(*place) {
                Some(Part::Any) if place + 1 == self.parts.len() => next.extend([*place, place + 1]),
                Some(Part::Any) => next.push(*place),
                Some(Part::Name(tokens)) if matches(tokens, name) => next.push(place + 1),
                Some(Part::Name(_)) | None => {}
            }
        }
        self.places(next)
    }

    /// Adds the places that are reached without a name: behind each `**` that is not the end.
    fn places(&self, mut places: Vec<usize>) -> Places {
        let mut at = 0;
        while let Some(place) = places.get(at).copied() {
            if matches!(self.parts.get(place), Some(Part::Any)) && place + 1 < self.parts.len() {
                places.push(place + 1);
            }
            at += 1;
        }
        places.sort_unstable();
        places.dedup();
        Places(places)
    }
}

fn tokens(mut rest: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    while let Some((first, mut later)) = rest.split_first() {
        let token = match first {
            b'*' => {
                later = &later[later.iter().take_while(|byte| **byte == b'*').count()..];
                Token::Some
            }
            b'?' => Token::One,
            b'[' => match set(later) {
                Some((token, behind)) => {
                    later = behind;
                    token
                }
                None => Token::Byte(b'['),
            },
            b'\\' if !later.is_empty() => {
                let token = Token::Byte(later[0]);
                later = &later[1..];
                token
            }
            byte => Token::Byte(*byte),
        };
        tokens.push(token);
        rest = later;
    }
    tokens
}

/// The set between `[` and its `]`. A `]` that comes first is one of the set.
fn set(text: &[u8]) -> Option<(Token, &[u8])> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let begin = usize::from(negated);
    let end = begin + 1 + text.get(begin + 1..)?.iter().position(|byte| *byte == b']')?;
    let mut ranges = Vec::new();
    let mut inside = &text[begin..end];
    while let Some(from) = inside.first() {
        match inside {
            [_, b'-', to, ..] => {
                ranges.push((*from, *to));
                inside = &inside[3..];
            }
            _ => {
                ranges.push((*from, *from));
                inside = &inside[1..];
            }
        }
    }
    Some((Token::Set(ranges, negated), &text[end + 1..]))
}

/// Whether a name matches the tokens. Going back to the last `*` only is enough: it can take any characters that an
/// earlier one could take.
fn matches(tokens: &[Token], name: &[u8]) -> bool {
    let (mut token, mut byte) = (0, 0);
    let mut last_some: Option<(usize, usize)> = None;
    while byte < name.len() {
        let len = char_len(&name[byte..]);
        let fits = match tokens.get(token) {
            Some(Token::Some) => {
                last_some = Some((token, byte));
                token += 1;
                continue;
            }
            Some(Token::One) => Some(len),
            Some(Token::Byte(wanted)) => (*wanted == name[byte]).then_some(1),
            Some(Token::Set(ranges, negated)) => {
                let inside = len == 1 && ranges.iter().any(|(from, to)| (*from..=*to).contains(&name[byte]));
                (inside != *negated).then_some(len)
            }
            None => None,
        };
        match (fits, last_some) {
            (Some(len), _) => {
                token += 1;
                byte += len;
            }
            (None, Some((some, began))) => {
                last_some = Some((some, began + 1));
                token = some + 1;
                byte = began + 1;
            }
            (None, None) => return false,
        }
    }
    tokens[token..].iter().all(|token| matches!(token, Token::Some))
}

/// Bytes of the character that a name begins with; 1 where it is none.
fn char_len(name: &[u8]) -> usize {
    let len = match name.first() {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => 1,
    };
    if name.get(..len).is_some_and(|bytes| std::str::from_utf8(bytes).is_ok()) { len } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_match(pattern: &str, path: &str) -> bool {
        let pattern = Pattern::new(pattern).unwrap();
        let mut places = pattern.start();
        for name in path.split('/') {
            places = pattern.step(&places, name.as_bytes());
        }
        places.is_match(&pattern)
    }

    #[test]
    fn names() {
        for (pattern, yes, no) in [
            ("*.py", "a.py", "a.pyc"),
            ("*.py", ".py", "d/a.py"),
            ("a?c", "aéc", "ac"),
            ("[a-c]x", "bx", "dx"),
            ("[!a-c]x", "dx", "bx"),
            ("[]x]", "]", "y"),
            ("[a", "[a", "a"),
            ("\\*", "*", "x"),
            ("a*b*c", "a1b2bc", "a1b2"),
            ("*", ".hidden", "a/b"),
            ("", "a/b/c", "\u{0}/never\u{0}"),
        ] {
            assert!(is_match(pattern, yes), "{pattern} {yes}");
            assert!(!is_match(pattern, no) || pattern.is_empty(), "{pattern} {no}");
        }
    }

    #[test]
    fn paths() {
        for (pattern, yes) in [
            ("**/*.py", "a.py"),
            ("**/*.py", "a/b/c.py"),
            ("a/**/z", "a/z"),
            ("a/**/z", "a/b/c/z"),
            ("a/**", "a/b/c"),
            ("**", "a"),
            ("**/**/a", "x/a"),
            ("./a//b/", "a/b"),
            ("a/*/c", "a/b/c"),
        ] {
            assert!(is_match(pattern, yes), "{pattern} {yes}");
        }
        for (pattern, no) in [("a/**", "a"), ("a/*/c", "a/b/b/c"), ("a/**/z", "b/z"), ("**/a", "a/b")] {
            assert!(!is_match(pattern, no), "{pattern} {no}");
        }
    }

    #[test]
    fn directories_without_hope_are_not_entered() {
        let pattern = Pattern::new("src/*.rs").unwrap();
        let step = |name: &str| pattern.step(&pattern.start(), name.as_bytes());
        assert!(step("src").leads_on(&pattern));
        assert!(!step("target").leads_on(&pattern));
        let deep = pattern.step(&step("src"), b"a.rs");
        assert!(deep.is_match(&pattern) && !deep.leads_on(&pattern));
    }

    #[test]
    fn no_pattern_takes_long() {
        let pattern = format!("{}b", "*a".repeat(200));
        assert!(!is_match(&pattern, &"a".repeat(4000)));
        let path = vec!["a"; 500].join("/");
        assert!(!is_match(&format!("{}b", "**/a/".repeat(40)), &path));
        assert!(Pattern::new(&"a/".repeat(PARTS_MAX + 1)).is_none());
    }
}
