//! Patterns of file names: `*`, `?`, `[a-z]` inside one part of a path, `**` for any number of parts.

use crate::budget::Budget;

/// Whether a path matches a pattern. `**` is special only where `deep`. What that takes is counted.
pub(crate) fn matches(pattern: &str, path: &str, deep: bool, budget: &Budget) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    parts(&pattern, &path, deep, budget)
}

/// Whether a text has characters that mean something in a pattern.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Dynamic programming over the parts, so that `**/**/**/…` costs no more than the product of the lengths.
fn parts(pattern: &[&str], path: &[&str], deep: bool, budget: &Budget) -> bool {
    // `row[i]`: the part of the pattern that was read so far matches the first `i` parts of the path.
    let mut row = vec![false; path.len() + 1];
    row[0] = true;
    for part in pattern {
        budget.work(row.len());
        let mut next = vec![false; path.len() + 1];
        if deep && *part == "**" {
            let mut any = false;
            for (at, reached) in row.iter().enumerate() {
                any |= *reached;
                next[at] = any;
            }
        } else {
            for at in 0..path.len() {
                next[at + 1] = row[at] && segment(part, path[at], budget);
            }
        }
        row = next;
    }
    row[path.len()]
}

/// One token of a pattern's part.
enum Token {
    Any,
    One,
    Char(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

fn segment(pattern: &str, text: &str, budget: &Budget) -> bool {
    if !is_pattern(pattern) && !pattern.contains('\\') {
        budget.work(pattern.len());
        return pattern == text;
    }
    budget.work((pattern.len() + 1).saturating_mul(text.len() + 1));
    let tokens = tokens(pattern);
    let text: Vec<char> = text.chars().collect();
    let mut row = vec![false; text.len() + 1];
    row[0] = true;
    for token in &tokens {
        let mut next = vec![false; text.len() + 1];
        if matches!(token, Token::Any) {
            let mut any = false;
            for (at, reached) in row.iter().enumerate() {
                any |= *reached;
                next[at] = any;
            }
        } else {
            for at in 0..text.len() {
                next[at + 1] = row[at] && token.takes(text[at]);
            }
        }
        row = next;
    }
    row[text.len()]
}

impl Token {
    fn takes(&self, c: char) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Char(own) => *own == c,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *negated
            }
        }
    }
}

fn tokens(pattern: &str) -> Vec<Token> {
    let chars: Vec<char> = pattern.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        match chars[at] {
            '*' => tokens.push(Token::Any),
            '?' => tokens.push(Token::One),
            '\\' if at + 1 < chars.len() => {
                at += 1;
                tokens.push(Token::Char(chars[at]));
            }
            '[' => match class(&chars[at + 1..]) {
                Some((token, length)) => {
                    tokens.push(token);
                    at += length;
                }
                // Never closed: a bracket like any other character.
                None => tokens.push(Token::Char('[')),
            },
            other => tokens.push(Token::Char(other)),
        }
        at += 1;
    }
    tokens
}

/// What stands between `[` and `]`, and how long that is with the closing bracket.
fn class(chars: &[char]) -> Option<(Token, usize)> {
    let negated = matches!(chars.first(), Some('^' | '!'));
    let start = usize::from(negated);
    // A bracket that comes first is a member.
    let end = (start + 1..chars.len()).find(|at| chars[*at] == ']')?;
    let mut ranges = Vec::new();
    let mut at = start;
    while at < end {
        if at + 2 < end && chars[at + 1] == '-' {
            ranges.push((chars[at], chars[at + 2]));
            at += 3;
        } else {
            ranges.push((chars[at], chars[at]));
            at += 1;
        }
    }
    Some((Token::Class { negated, ranges }, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, path: &str, deep: bool) -> bool {
        super::matches(pattern, path, deep, &Budget::default())
    }

    #[test]
    fn patterns() {
        for (pattern, path) in [
            ("*.txt", "a.txt"),
            ("a/*/c", "a/b/c"),
            ("**/c", "c"),
            ("**/c", "a/b/c"),
            ("a/**", "a/b/c"),
            ("[a-c]?", "bx"),
            ("[^a]", "b"),
            ("\\*", "*"),
            ("[x", "[x"),
            ("*", ""),
        ] {
            assert!(matches(pattern, path, true), "{pattern} {path}");
        }
        for (pattern, path) in
            [("*.txt", "a/b.txt"), ("a", "ab"), ("?", ""), ("[^a]", "a"), ("a/*", "a"), ("", "a")]
        {
            assert!(!matches(pattern, path, true), "{pattern} {path}");
        }
        assert!(!matches("**/c", "a/b/c", false));
    }

    proptest! {
        #[test]
        fn never_panics_and_a_plain_text_matches_itself(pattern in "\\PC{0,30}", path in "[a-z/.]{0,30}") {
            let _ = matches(&pattern, &path, true);
            prop_assert!(matches(&path, &path, true));
        }
    }
}
