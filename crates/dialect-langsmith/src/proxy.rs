//! `proxy_config`: what a sandbox may reach and which credentials are put into its requests on the way out.
//!
//! What is kept to be shown again has no value of a secret in it.

use serde_json::{Map, Value};

/// The configuration without the values of secrets.
pub(crate) fn redacted(config: &Value) -> Value {
    match config {
        Value::Object(fields) => {
            let is_secret = fields.get("type").and_then(Value::as_str) == Some("opaque");
            let mut kept: Map<String, Value> = fields
                .iter()
                .filter(|(key, _)| !(is_secret && *key == "value"))
                .map(|(key, value)| (key.clone(), redacted(value)))
                .collect();
            if is_secret {
                kept.insert("is_set".to_owned(), Value::Bool(true));
            }
            Value::Object(kept)
        }
        Value::Array(items) => items.iter().map(redacted).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let config = json!({"rules": [{"name": "github", "match_hosts": ["github.com"],
            "headers": [{"name": "Authorization", "type": "opaque", "value": "Basic sesame"},
                        {"name": "X-Plain", "type": "plaintext", "value": "shown"}]}]});
        let shown = redacted(&config).to_string();
        assert!(!shown.contains("sesame"), "{shown}");
        assert!(shown.contains("\"is_set\":true") && shown.contains("shown"), "{shown}");
    }
}
