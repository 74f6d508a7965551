//! Makes one Dockerfile of the layers of an image.
//!
//! A layer's first line is `FROM base`, and its files lie in a context of its own. In the whole Dockerfile, the lines
//! of the image below replace that line, and the layer's files lie in a directory of the context that is named after
//! their content.

use std::sync::Arc;

use crate::grpc::{Fault, Result};

/// The default templates; one of them is the image of `Image.debian_slim()`.
const DEFAULTS: &str = include_str!("../../../../../../images/Dockerfile");
/// Bytes of a whole Dockerfile.
const RECIPE_MAX_BYTES: usize = 256 << 10;
/// Most directories of files of one recipe.
const PARTS_MAX: usize = 64;

/// A file of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    /// Below the layer's directory.
    pub(super) path: String,
    /// The hash of a content that was sent before, or the content itself.
    pub(super) content: Content,
    pub(super) mode: u32,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Sent(String),
    Here(bytes::Bytes),
}

/// An image's lines, and the files that they copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recipe {
    pub(super) text: String,
    /// By directory.
    pub(super) parts: Vec<(String, Arc<[File]>)>,
}

/// A layer, as a client sends it.
#[derive(Debug)]
pub(super) struct Layer<'a> {
    pub(super) commands: &'a [String],
    /// The name of the image below in the `FROM` line, and its recipe.
    pub(super) base: Option<(&'a str, Recipe)>,
    pub(super) files: Arc<[File]>,
}

impl Recipe {
    /// The recipe of the default image, on an image of the server.
    pub(super) fn debian_slim(image: &str) -> Self {
        let stage = format!(" AS {}", super::DEBIAN_SLIM_TEMPLATE);
        let lines = DEFAULTS.lines().skip_while(|line| !line.ends_with(&stage)).skip(1);
        let rest: Vec<&str> = lines.take_while(|line| !line.starts_with("FROM ")).collect();
        Self { text: format!("FROM {image}\n{}\n", rest.join("\n")), parts: Vec::new() }
    }

    /// A recipe on an image that is here already, by its name in `FROM`.
    pub(super) fn on(base: &str) -> Self {
        Self { text: format!("FROM {base}\n"), parts: Vec::new() }
    }

    /// The recipe of a layer on top of the image below it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`.
    pub(super) fn of(layer: Layer<'_>) -> Result<Self> {
        if layer.commands.iter().map(|command| command.len() + 1).sum::<usize>() > RECIPE_MAX_BYTES {
            return Err(too_large());
        }
        let below = layer.base.as_ref().map(|(tag, below)| (format!("FROM {tag}"), below));
        let mut recipe = Self { text: String::new(), parts: Vec::new() };
        if let Some((_, below)) = &below {
            recipe.parts.clone_from(&below.parts);
        }
        let dir = directory(&layer.files);
        if !layer.files.is_empty() && !recipe.parts.iter().any(|(known, _)| *known == dir) {
            recipe.parts.push((dir.clone(), Arc::clone(&layer.files)));
        }
        let copies = (!layer.files.is_empty()).then_some(dir.as_str());
        for line in joined(layer.commands) {
            match &below {
                Some((from, below)) if line.trim() == from => recipe.text.push_str(&below.text),
                _ => recipe.text.push_str(&copies.map_or_else(|| line.clone(), |dir| moved(&line, dir))),
            }
            if !recipe.text.ends_with('\n') {
                recipe.text.push('\n');
            }
            // After each line: every one of them may stand for the whole image below.
            if recipe.text.len() > RECIPE_MAX_BYTES || recipe.parts.len() > PARTS_MAX {
                return Err(too_large());
            }
        }
        Ok(recipe)
    }

    /// Bytes that it takes in memory.
    pub(super) fn weight(&self) -> usize {
        self.text.len() + self.parts.iter().map(|(dir, files)| dir.len() + weight(files)).sum::<usize>()
    }

    /// The id of the image that it makes for the key that has this token: the same lines and files give the same id. Nobody
    /// else can tell it before the image is there, and so cannot make a template of that name first.
    pub(super) fn id(&self, token: &str) -> String {
        const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
        let mut hasher = blake3::Hasher::new_derive_key("atoll modal image id");
        let texts = [token, self.text.as_str()].into_iter();
        for text in texts.chain(self.parts.iter().map(|(dir, _)| dir.as_str())) {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let hash = hasher.finalize();
        let letters = hash.as_bytes().iter().take(super::ID_CHARS);
        let body: String = letters.map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect();
        format!("im-{body}")
    }
}

fn too_large() -> Fault {
    let most = RECIPE_MAX_BYTES >> 10;
    Fault::invalid(format!("an image may have {most} KiB of lines and files of {PARTS_MAX} layers"))
}

/// Bytes that a list of files takes in memory.
pub(super) fn weight(files: &[File]) -> usize {
    let one = |file: &File| {
        let content = match &file.content {
            Content::Sent(hash) => hash.len(),
            Content::Here(bytes) => bytes.len(),
        };
        size_of::<File>() + file.path.len() + content
    };
    files.iter().map(one).sum()
}

/// A directory's name, made of the files in it.
fn directory(files: &[File]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("atoll modal context directory");
    for file in files {
        let content = match &file.content {
            Content::Sent(hash) => hash.clone(),
            Content::Here(bytes) => blake3::hash(bytes).to_hex().to_string(),
        };
        for text in [file.path.as_str(), &content] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&file.mode.to_le_bytes());
    }
    format!("layer-{}", &hasher.finalize().to_hex()[..20])
}

/// The lines. A `COPY` or `ADD` that a backslash continues becomes one line.
fn joined(commands: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut open = false;
    for line in commands.iter().flat_map(|command| command.lines()) {
        match lines.last_mut() {
            Some(last) if open => {
                last.truncate(last.trim_end().len() - 1);
                last.push_str(line);
            }
            _ => lines.push(line.to_owned()),
        }
        open = lines.last().is_some_and(|last| is_copy(last) && last.trim_end().ends_with('\\'));
    }
    lines
}

fn is_copy(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    word.eq_ignore_ascii_case("COPY") || word.eq_ignore_ascii_case("ADD")
}

/// A line; if it copies files of the context, with their paths below `dir`.
fn moved(line: &str, dir: &str) -> String {
    if !is_copy(line) {
        return line.to_owned();
    }
    let elsewhere = |word: &str| word.starts_with("--from=") || word.contains("<<");
    if line.split_whitespace().any(elsewhere) {
        return line.to_owned();
    }
    let place = |source: &str| {
        let web = source.contains("://");
        if web {
            source.to_owned()
        } else {
            format!("{dir}/{}", source.trim_start_matches(['/']).trim_start_matches("./"))
        }
    };
    let (head, rest) = match line.find('[') {
        Some(at) => line.split_at(at),
        None => (line, ""),
    };
    if let Ok(mut list) = serde_json::from_str::<Vec<String>>(rest.trim()) {
        let last = list.len().saturating_sub(1);
        list.iter_mut().take(last).for_each(|source| *source = place(source));
        let list: Vec<String> =
            list.iter().map(|word| serde_json::Value::from(word.as_str()).to_string()).collect();
        return format!("{head}[{}]", list.join(", "));
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let first = 1 + words.iter().skip(1).take_while(|word| word.starts_with("--")).count();
    let last = words.len().saturating_sub(1);
    let each = words
        .iter()
        .enumerate()
        .map(|(at, word)| if at >= first && at < last { place(word) } else { (*word).to_owned() });
    each.collect::<Vec<_>>().join(" ")
}

/// The registry image of the first `FROM` line.
pub(super) fn registry_image(commands: &[String]) -> Option<String> {
    let mut words = commands.iter().map(|line| line.split_whitespace());
    let from = words.find_map(|mut words| words.next()?.eq_ignore_ascii_case("FROM").then_some(words))?;
    from.filter(|word| !word.starts_with("--")).map(str::to_owned).next()
}

/// The lines, in which every `RUN` has these secrets as variables.
///
/// # Errors
/// `INVALID_ARGUMENT` for what would be too large for a recipe.
pub(super) fn with_secrets<'a>(
    commands: &[String],
    names: impl Iterator<Item = &'a String>,
) -> Result<Vec<String>> {
    let mounts: String = names.map(|name| format!(" --mount=type=secret,id={name},env={name}")).collect();
    if mounts.is_empty() {
        return Ok(commands.to_vec());
    }
    let (mut bytes, mut continues) = (0, false);
    let lines = commands.iter().flat_map(|command| command.lines()).map(|line| {
        let begins = !continues;
        continues = line.trim_end().ends_with('\\');
        let line = match line.split_at_checked("RUN".len()) {
            Some((word, rest))
                if begins && word.eq_ignore_ascii_case("RUN") && rest.starts_with([' ', '\t']) =>
            {
                format!("{word}{mounts}{rest}")
            }
            _ => line.to_owned(),
        };
        // After each line: every one of them may have all names.
        bytes += line.len();
        if bytes > RECIPE_MAX_BYTES { Err(too_large()) } else { Ok(line) }
    });
    lines.collect()
}

/// Whether lines are those of `Image.debian_slim()`: they begin with Debian's Python, and install a compiler.
pub(super) fn is_debian_slim(commands: &[String]) -> bool {
    let begins =
        |command: &String| command.strip_prefix("FROM python:").is_some_and(|rest| rest.contains("-slim-"));
    commands.first().is_some_and(begins) && commands.iter().any(|command| command.contains("gfortran"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn layers_are_one_dockerfile() {
        let below = Recipe { text: "FROM debian\nRUN one\n".to_owned(), parts: Vec::new() };
        let file = File { path: "a".to_owned(), content: Content::Sent("0".repeat(64)), mode: 0o644 };
        let commands = texts(&["FROM base", "COPY . /app", "RUN two"]);
        let layer = Layer { commands: &commands, base: Some(("base", below.clone())), files: [file].into() };
        let whole = Recipe::of(layer).unwrap();
        let dir = &whole.parts[0].0;
        assert_eq!(whole.text, format!("FROM debian\nRUN one\nCOPY {dir}/. /app\nRUN two\n"));
        assert_ne!(whole.id("key"), below.id("key"));
        assert_ne!(whole.id("key"), whole.id("other"), "each key has images of its own");
        assert_eq!(super::super::template_of(&whole.id("key")).map(|name| name.len()), Some(26));
    }

    #[test]
    fn sources_move() {
        for (line, expected) in [
            ("COPY a ./b /c", "COPY d/a d/b /c"),
            ("copy --chown=1:1 /a /c", "copy --chown=1:1 d/a /c"),
            (r#"COPY ["a b", "/c"]"#, r#"COPY ["d/a b", "/c"]"#),
            ("COPY --from=x a /c", "COPY --from=x a /c"),
            ("ADD https://h/a /c", "ADD https://h/a /c"),
            ("RUN cp a b", "RUN cp a b"),
        ] {
            assert_eq!(moved(line, "d"), expected);
        }
        assert_eq!(joined(&texts(&["COPY a \\\n  /b", "RUN x \\\n y"])), ["COPY a   /b", "RUN x \\", " y"]);
    }

    #[test]
    fn what_only_one_build_is_given() {
        let lines = texts(&[
            "FROM --platform=linux/amd64 r.test/a:1 AS x",
            "RUN one \\\n RUN",
            "run two",
            "COPY a b",
        ]);
        assert_eq!(registry_image(&lines).as_deref(), Some("r.test/a:1"));
        assert_eq!(registry_image(&texts(&["RUN x"])), None);
        assert_eq!(with_secrets(&lines, [].iter()).unwrap(), lines);
        let names = ["A".to_owned(), "B".to_owned()];
        let mounts = "--mount=type=secret,id=A,env=A --mount=type=secret,id=B,env=B";
        let given = [
            lines[0].clone(),
            format!("RUN {mounts} one \\"),
            " RUN".into(),
            format!("run {mounts} two"),
            "COPY a b".into(),
        ];
        assert_eq!(with_secrets(&lines, names.iter()).unwrap(), given);
    }

    /// Both would be made line by line: a thousand times what the image below has, or what one `RUN` has.
    #[test]
    fn lines_that_stand_for_many_are_refused_before_they_are_made() {
        let text = format!("FROM debian\n{}", "RUN x\n".repeat(RECIPE_MAX_BYTES / 12));
        let below = Recipe { text, parts: Vec::new() };
        let commands = texts(&["FROM b\n".repeat(1000).as_str()]);
        let layer = Layer { commands: &commands, base: Some(("b", below)), files: Arc::default() };
        assert!(Recipe::of(layer).is_err());
        let names: Vec<String> = (0..1000).map(|number| format!("NAME{number}")).collect();
        assert!(with_secrets(&texts(&["RUN x"]), names.iter()).is_ok());
        assert!(with_secrets(&texts(&["RUN x\n".repeat(1000).as_str()]), names.iter()).is_err());
    }

    #[test]
    fn the_default_image() {
        assert!(is_debian_slim(&texts(&[
            "FROM python:3.11.12-slim-bookworm",
            "RUN apt-get install -y gcc gfortran"
        ])));
        assert!(!is_debian_slim(&texts(&["FROM python:3.11.12-slim-bookworm"])));
        let recipe = Recipe::debian_slim("host");
        assert!(recipe.text.starts_with("FROM host\n") && recipe.text.contains("RUN"), "{}", recipe.text);
        assert_eq!(recipe.text.matches("FROM").count(), 1);
    }
}
