//! Reads the routes out of a router's source.

use std::collections::BTreeSet;

/// The routes that a source adds by `.route("path", get(…).post(…))`, as method and path; `ANY` for `any(…)`.
#[must_use]
pub fn routes_in(source: &str) -> BTreeSet<(String, String)> {
    source.split(".route(").skip(1).flat_map(one).collect()
}

fn one(rest: &str) -> Vec<(String, String)> {
    let text = rest.trim_start().strip_prefix('"').expect("a route's path is written out");
    let (path, rest) = text.split_once('"').expect("a path ends");
    let mut depth = 1_usize;
    let end = rest.find(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let handlers = &rest[..end.expect("a route ends")];
    let methods = ["get", "post", "put", "patch", "delete", "any"];
    let is_call = |method: &str| {
        handlers.match_indices(&format!("{method}(")).any(|(at, _)| {
            !handlers[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before))
        })
    };
    let found = methods.iter().filter(|method| is_call(method));
    found.map(|method| (method.to_uppercase(), path.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_found_with_their_methods() {
        let source = r#"Router::new().route("/a", get(x::get).post(y)).route(
            "/b/{c}", axum::routing::any(z),)"#;
        let found: Vec<_> = routes_in(source).into_iter().collect();
        let is = |method: &str, path: &str| (method.to_owned(), path.to_owned());
        // A method that is named by its whole path is not read.
        assert_eq!(found, [is("GET", "/a"), is("POST", "/a")]);
    }
}
