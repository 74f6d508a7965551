//! The Dockerfile of a blueprint: its own, or one on the server's default image, and then its files and commands.

use atoll_core::spec;

use super::Parameters;
use crate::error::{Failure, Result};

/// A word for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A `RUN` in the form that no shell reads first.
fn run(script: &str) -> Result<String> {
    let words = serde_json::to_string(&["/bin/sh", "-c", script])
        .map_err(|error| Failure::bad(format!("system_setup_commands: {error}")))?;
    Ok(format!("RUN {words}\n"))
}

/// The Dockerfile that is built. `image` is the server's default.
///
/// # Errors
/// 400.
pub(super) fn dockerfile(parameters: &Parameters, image: &str) -> Result<String> {
    let mut text = match parameters.dockerfile.as_deref().filter(|text| !text.trim().is_empty()) {
        Some(text) => format!("{}\n", text.trim_end()),
        None => format!("FROM {image}\n"),
    };
    for (path, content) in parameters.file_mounts.iter().flatten() {
        spec::path("file_mounts", path)?;
        let dir = path.rsplit_once('/').map_or("/", |(dir, _)| dir);
        let script = format!(
            "mkdir -p -- {} && printf %s {} >{}",
            quoted(if dir.is_empty() { "/" } else { dir }),
            quoted(content),
            quoted(path)
        );
        text.push_str(&run(&script)?);
    }
    for line in parameters.system_setup_commands.iter().flatten() {
        text.push_str(&run(line)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_after_the_dockerfile() {
        let parameters: Parameters = serde_json::from_str(
            r#"{"name":"a","dockerfile":"FROM x\nRUN y","system_setup_commands":["echo \"a\n$b\""],
                "file_mounts":{"/etc/it's":"c'd\n"}}"#,
        )
        .unwrap();
        let text = dockerfile(&parameters, "host").unwrap();
        assert!(text.starts_with("FROM x\nRUN y\nRUN ["), "{text}");
        assert!(text.ends_with("RUN [\"/bin/sh\",\"-c\",\"echo \\\"a\\n$b\\\"\"]\n"), "{text}");
        assert_eq!(text.lines().count(), 4);
        assert_eq!(dockerfile(&Parameters::default(), "host").unwrap(), "FROM host\n");
    }
}
