//! `WWW-Authenticate`: what a registry wants to see.

/// A challenge that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// A token from the server at `realm`.
    Bearer { realm: String, service: Option<String> },
    /// User name and password.
    Basic,
}

/// The best challenge of several headers, each of which may hold several.
pub(crate) fn strongest<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Challenge> {
    let mut basic = None;
    for header in headers {
        for challenge in parse(header) {
            if matches!(challenge, Challenge::Bearer { .. }) {
                return Some(challenge);
            }
            basic = Some(challenge);
        }
    }
    basic
}

fn parse(header: &str) -> Vec<Challenge> {
    let mut found = Vec::new();
    let mut scheme = "";
    let mut params: Vec<(String, String)> = Vec::new();
    let mut rest = header.trim_start();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c == ',' || c.is_whitespace()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if let Some(value) = after.strip_prefix('=') {
            let (value, after) = value_of(value);
            params.push((word.to_ascii_lowercase(), value));
            rest = after;
        } else if !word.is_empty() {
            found.extend(challenge(scheme, &params));
            params.clear();
            scheme = word;
            rest = after;
        }
        rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
    }
    found.extend(challenge(scheme, &params));
    found
}

fn challenge(scheme: &str, params: &[(String, String)]) -> Option<Challenge> {
    let find = |key: &str| params.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Challenge::Bearer { realm: find("realm")?, service: find("service") });
    }
    scheme.eq_ignore_ascii_case("basic").then_some(Challenge::Basic)
}

/// A quoted string or a token, and what follows it.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_of_real_registries() {
        let bearer = |realm: &str, service: Option<&str>| Challenge::Bearer {
            realm: realm.into(),
            service: service.map(Into::into),
        };
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let both = r#"Basic realm="x, y", Bearer realm="https://t/\"q\"""#;
        for (header, expected) in [
            (hub, Some(bearer("https://auth.docker.io/token", Some("registry.docker.io")))),
            (both, Some(bearer("https://t/\"q\"", None))),
            ("Basic realm=registry", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            ("Bearer service=x", None),
            ("Negotiate abc==", None),
            ("=,=,\"", None),
            ("", None),
        ] {
            assert_eq!(strongest([header].into_iter()), expected, "{header}");
        }
    }
}
