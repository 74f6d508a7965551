//! The Dockerfile subset.
//!
//! What a Dockerfile may say and a build cannot do is refused by name, with the place and what to do instead: a
//! template that silently lacks a part of its Dockerfile would be worse than none. What means nothing for a sandbox is
//! passed over, and the build's log says so ([`Recipe::notes`]).

use atoll_core::error::shorten;
use atoll_core::limits::{BUILD_STAGES_MAX_COUNT, DOCKERFILE_MAX_BYTES};
use atoll_core::{Code, Error, Result};

use crate::lines::{self, Heredoc, Line};
use crate::mounts::{self, MOUNTS_MAX_COUNT};
use crate::place::Place;
use crate::recipe::{Action, Arg, Command, Copy, Instruction, Mount, Recipe, Source, Stage};
use crate::words::{self, Word};

/// Characters of an instruction that are shown.
const SHOWN_CHARS: usize = 160;

/// Instructions of Docker that mean nothing for a sandbox, and why. What they would do is not part of the image.
const WITHOUT_EFFECT: [(&str, &str); 4] = [
    ("VOLUME", "everything a sandbox writes stays in the sandbox"),
    ("HEALTHCHECK", "give the build a ready command (--ready-cmd)"),
    ("STOPSIGNAL", "sandboxes are frozen and deleted, not stopped"),
    ("MAINTAINER", "it is written into no image"),
];

/// Reads a Dockerfile.
///
/// # Errors
/// [`Code::BuildFileInvalid`], [`Code::InstructionUnsupported`] or [`Code::TooLarge`], with the place.
pub fn parse(text: &str) -> Result<Recipe> {
    if text.len() > DOCKERFILE_MAX_BYTES {
        return Err(Error::new(Code::TooLarge, "the Dockerfile is larger than 512 KiB"));
    }
    if let Some(at) = text.find('\0') {
        let line = text[..at].bytes().filter(|b| *b == b'\n').count() + 1;
        let place = Place::Line { line: u32::try_from(line).unwrap_or(u32::MAX), column: 1 };
        return Err(place.invalid("a NUL byte"));
    }
    let (lines, escape) = lines::logical(text)?;
    let mut recipe =
        Recipe { escape, variables: true, args: Vec::new(), stages: Vec::new(), notes: Vec::new() };
    for line in &lines {
        Reader { line, escape }.read(&mut recipe)?;
    }
    if recipe.stages.is_empty() {
        let place = Place::Line { line: 1, column: 1 };
        return Err(place
            .invalid("there is no FROM")
            .hint("begin with FROM and an image, such as FROM host"));
    }
    Ok(recipe)
}

/// Reads one logical line.
struct Reader<'a> {
    line: &'a Line,
    escape: char,
}

/// What follows the keyword: flags, then the rest.
struct Tail<'a> {
    flags: Vec<(Place, &'a str, Option<&'a str>)>,
    /// Offset of `rest` in the line.
    offset: usize,
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn read(&self, recipe: &mut Recipe) -> Result<()> {
        let text = &self.line.text;
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (keyword, place) = (text[..end].to_ascii_uppercase(), self.line.place(0));
        let tail = self.tail(end);
        if let Some((_, why)) = WITHOUT_EFFECT.iter().find(|(name, _)| *name == keyword) {
            recipe.notes.push(format!("{place}: {keyword} has no effect: {why}"));
            return Ok(());
        }
        if !["COPY", "ADD", "FROM", "RUN"].contains(&keyword.as_str())
            && let Some((place, name, _)) = tail.flags.first()
        {
            return Err(place.invalid(format_args!("{keyword} has no --{}", shorten(name))));
        }
        let action = match keyword.as_str() {
            "FROM" => return self.from(place, &tail, recipe),
            "ARG" => {
                let args = self.args(&tail)?;
                match recipe.stages.last() {
                    None => {
                        recipe.args.extend(args);
                        return Ok(());
                    }
                    Some(_) => Action::Arg(args),
                }
            }
            "RUN" => {
                let mounts = run_flags(place, &tail, &mut recipe.notes)?;
                Action::Run(self.run(place, &tail)?, mounts)
            }
            "COPY" | "ADD" => Action::Copy(self.copy(place, &tail, keyword == "ADD")?),
            "ENV" => Action::Env(self.pairs(place, &tail, "ENV")?),
            "LABEL" => Action::Label(self.pairs(place, &tail, "LABEL")?),
            "WORKDIR" => Action::Workdir(self.one(place, &tail, "WORKDIR", "a directory")?),
            "USER" => Action::User(self.one(place, &tail, "USER", "a user")?),
            "CMD" => Action::Cmd(command(tail.rest)),
            "ENTRYPOINT" => Action::Entrypoint(command(tail.rest)),
            "EXPOSE" => {
                let ports = words::split(tail.rest, 0, self.escape);
                Action::Expose(ports.into_iter().map(|word| word.text.to_owned()).collect())
            }
            "SHELL" => match json(tail.rest) {
                Some(shell) if !shell.is_empty() => Action::Shell(shell),
                _ => {
                    return Err(place
                        .invalid("SHELL wants a list")
                        .hint("write it as JSON: SHELL [\"/bin/bash\", \"-c\"]"));
                }
            },
            other => return Err(unknown(place, other)),
        };
        let Some(stage) = recipe.stages.last_mut() else {
            return Err(place
                .invalid(format_args!("{keyword} stands before the first FROM"))
                .hint("begin with FROM; only ARG may come before it"));
        };
        stage.instructions.push(Instruction { place, text: shown(text), action });
        Ok(())
    }

    fn tail(&self, end: usize) -> Tail<'a> {
        let text = &self.line.text;
        let mut at = end;
        let mut flags = Vec::new();
        loop {
            let start = at + (text[at..].len() - text[at..].trim_start().len());
            if !text[start..].starts_with("--") {
                return Tail { flags, offset: start, rest: text[start..].trim_end() };
            }
            let length = text[start..].find(char::is_whitespace).unwrap_or(text.len() - start);
            let flag = &text[start + 2..start + length];
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            flags.push((self.line.place(start), name, value));
            at = start + length;
        }
    }

    fn from(&self, place: Place, tail: &Tail<'_>, recipe: &mut Recipe) -> Result<()> {
        let mut platform = None;
        for (place, name, value) in &tail.flags {
            match (*name, value) {
                ("platform", Some(value)) => platform = Some((*place, (*value).to_owned())),
                ("platform", None) => return Err(place.invalid("--platform wants a value")),
                _ => return Err(place.invalid(format_args!("FROM has no --{}", shorten(name)))),
            }
        }
        let words = words::split(tail.rest, tail.offset, self.escape);
        let (base, name) = match &words[..] {
            [base] => (base, None),
            [base, as_, name] if as_.text.eq_ignore_ascii_case("as") => (base, Some(name)),
            _ => return Err(place.invalid("FROM wants an image, and perhaps AS and a name")),
        };
        let name = name.map(|name| self.stage_name(name, recipe)).transpose()?;
        if base.text.eq_ignore_ascii_case("scratch") {
            return Err(self.line.place(base.offset).unsupported(
                "FROM scratch",
                "a sandbox needs a root file system: begin with an image, or import one with 'atoll image import'",
            ));
        }
        if recipe.stages.len() == BUILD_STAGES_MAX_COUNT {
            return Err(
                place.error(Code::TooLarge, format_args!("more than {BUILD_STAGES_MAX_COUNT} stages"))
            );
        }
        let base = base.text.to_owned();
        recipe.stages.push(Stage { place, name, base, platform, instructions: Vec::new() });
        Ok(())
    }

    fn stage_name(&self, word: &Word<'_>, recipe: &Recipe) -> Result<String> {
        let (place, name) = (self.line.place(word.offset), word.text.to_ascii_lowercase());
        let form = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !form {
            return Err(place
                .invalid(format_args!("'{}' is no name for a stage", shorten(word.text)))
                .hint("use letters, digits, '-', '_' and '.', beginning with a letter"));
        }
        if recipe.stages.iter().any(|stage| stage.name.as_deref() == Some(&name)) {
            return Err(place.invalid(format_args!("two stages are called '{}'", shorten(&name))));
        }
        Ok(name)
    }

    fn args(&self, tail: &Tail<'_>) -> Result<Vec<Arg>> {
        let words = words::split(tail.rest, tail.offset, self.escape);
        if words.is_empty() {
            return Err(self.line.place(0).invalid("ARG wants a name"));
        }
        let arg = |word: Word<'_>| {
            let place = self.line.place(word.offset);
            let (name, default) = match word.text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.text, None),
            };
            check_name(place, name)?;
            Ok(Arg { place, name: name.to_owned(), default })
        };
        words.into_iter().map(arg).collect()
    }

    fn pairs(&self, place: Place, tail: &Tail<'_>, keyword: &str) -> Result<Vec<(String, String)>> {
        let words = words::split(tail.rest, tail.offset, self.escape);
        let Some(first) = words.first() else {
            return Err(place.invalid(format_args!("{keyword} wants name=value")));
        };
        if !first.text.contains('=') {
            // The old form: everything behind the name is the value.
            let value = tail.rest[first.text.len()..].trim_start();
            if value.is_empty() {
                return Err(place.invalid(format_args!("{keyword} wants name=value")));
            }
            return Ok(vec![(first.text.to_owned(), value.to_owned())]);
        }
        let pair = |word: &Word<'_>| match word.text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(self
                .line
                .place(word.offset)
                .invalid(format_args!("'{}' is not name=value", shorten(word.text)))
                .hint("put quotes around a value with spaces")),
        };
        words.iter().map(pair).collect()
    }

    fn one(&self, place: Place, tail: &Tail<'_>, keyword: &str, what: &str) -> Result<String> {
        if tail.rest.is_empty() {
            return Err(place.invalid(format_args!("{keyword} wants {what}")));
        }
        Ok(tail.rest.to_owned())
    }

    fn run(&self, place: Place, tail: &Tail<'_>) -> Result<Command> {
        if tail.rest.is_empty() {
            return Err(place.invalid("RUN wants a command"));
        }
        let Some(first) = self.line.heredocs.first() else { return Ok(command(tail.rest)) };
        if lines::marks(tail.rest).first().is_some_and(|(at, _)| *at == 0)
            && words::split(tail.rest, 0, self.escape).len() == 1
        {
            if first.body.starts_with("#!") {
                return Err(place.unsupported(
                    "a script with #! in RUN",
                    "copy it (COPY <<EOF /script) and run that, or name the program: RUN python3 <<EOF",
                ));
            }
            return Ok(Command::Shell(first.body.clone()));
        }
        // The shell reads the documents itself.
        let mut script = format!("{}\n", tail.rest);
        for Heredoc { name, body, .. } in &self.line.heredocs {
            script.push_str(body);
            script.push_str(name);
            script.push('\n');
        }
        Ok(Command::Shell(script))
    }

    fn copy(&self, place: Place, tail: &Tail<'_>, add: bool) -> Result<Copy> {
        let keyword = if add { "ADD" } else { "COPY" };
        let mut copy = Copy {
            sources: Vec::new(),
            destination: String::new(),
            from: None,
            chown: None,
            chmod: None,
            checksum: None,
            add,
            keep_links: false,
        };
        for (place, name, value) in &tail.flags {
            self.copy_flag(*place, keyword, name, *value, &mut copy)?;
        }
        let mut words: Vec<(usize, String)> = match json(tail.rest) {
            Some(list) => list.into_iter().map(|text| (tail.offset, text)).collect(),
            None => words::split(tail.rest, tail.offset, self.escape)
                .into_iter()
                .map(|word| (word.offset, word.text.to_owned()))
                .collect(),
        };
        let Some((_, destination)) = words.pop().filter(|_| !words.is_empty()) else {
            return Err(place.invalid(format_args!("{keyword} wants at least one source and a destination")));
        };
        copy.destination = destination;
        let mut heredocs = self.line.heredocs.iter();
        for (offset, word) in words {
            let place = self.line.place(offset);
            let inline = lines::marks(&word).first().is_some_and(|(at, _)| *at == 0);
            copy.sources.push(match heredocs.next().filter(|_| inline) {
                Some(doc) if doc.quoted || !doc.body.contains('$') => {
                    Source::Inline { name: doc.name.clone(), content: doc.body.clone() }
                }
                Some(doc) => {
                    return Err(place.unsupported(
                        "a variable in a here-document of COPY",
                        &format!("put quotes around its word, <<\"{}\", and $ stands for itself", doc.name),
                    ));
                }
                None => source(place, keyword, word)?,
            });
        }
        let fetches = copy.sources.iter().any(|source| matches!(source, Source::Address(_)));
        if fetches && copy.sources.len() > 1 {
            return Err(place.unsupported("ADD of an address beside other sources", "write an ADD for each"));
        }
        if copy.checksum.is_some() && !fetches {
            return Err(place.invalid("--checksum is for an ADD of an address"));
        }
        Ok(copy)
    }

    fn copy_flag(
        &self,
        place: Place,
        keyword: &str,
        name: &str,
        value: Option<&str>,
        copy: &mut Copy,
    ) -> Result<()> {
        let wanted = || {
            let value = value.filter(|value| !value.is_empty());
            value.map(str::to_owned).ok_or_else(|| place.invalid(format_args!("--{name} wants a value")))
        };
        match name {
            "chown" => copy.chown = Some(wanted()?),
            "chmod" => copy.chmod = Some(mode(place, &wanted()?)?),
            "from" if !copy.add => copy.from = Some(wanted()?),
            // The result is the same with and without.
            "link" => {}
            "checksum" if copy.add => copy.checksum = Some(checksum(place, &wanted()?)?),
            "parents" | "exclude" | "keep-git-dir" | "unpack" => {
                return Err(place.unsupported(
                    format_args!("{keyword} --{name}"),
                    "name the files one by one, or leave files out with a .dockerignore",
                ));
            }
            other => return Err(place.invalid(format_args!("{keyword} has no --{}", shorten(other)))),
        }
        Ok(())
    }
}

/// The flags of `RUN`: what it mounts.
fn run_flags(place: Place, tail: &Tail<'_>, notes: &mut Vec<String>) -> Result<Vec<Mount>> {
    let mut all = Vec::new();
    for (place, name, value) in &tail.flags {
        let value = value.unwrap_or_default();
        match *name {
            "mount" => all.extend(mounts::parse(*place, value, notes)?),
            "network" if value == "default" => {}
            "network" => {
                return Err(place.unsupported("RUN --network", "give the build a network policy instead"));
            }
            "security" | "device" => {
                return Err(place.unsupported(
                    format_args!("RUN --{name}"),
                    "steps run in a sandbox, never outside of it",
                ));
            }
            other => return Err(place.invalid(format_args!("RUN has no --{}", shorten(other)))),
        }
    }
    if all.len() > MOUNTS_MAX_COUNT {
        let message = format_args!("more than {MOUNTS_MAX_COUNT} mounts of one command");
        return Err(place.error(Code::TooLarge, message));
    }
    Ok(all)
}

/// Permission bits.
pub(crate) fn mode(place: Place, text: &str) -> Result<u32> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    u32::from_str_radix(text, 8).ok().filter(|_| digits).ok_or_else(|| {
        place
            .invalid(format_args!("'{}' are no permissions", shorten(text)))
            .hint("write them in octal, such as 0755")
    })
}

/// Names of variables and arguments.
pub(crate) fn check_name(place: Place, name: &str) -> Result<()> {
    let form = !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if name.is_empty() || !form {
        return Err(place.invalid(format_args!("'{}' is no name of an argument", shorten(name))));
    }
    Ok(())
}

/// A digest that a fetched file must have.
fn checksum(place: Place, text: &str) -> Result<String> {
    let digest = text.strip_prefix("sha256:").filter(|digest| digest.len() == 64);
    let digest = digest.filter(|digest| digest.bytes().all(|b| b.is_ascii_hexdigit()));
    digest.map(str::to_ascii_lowercase).ok_or_else(|| {
        place
            .invalid(format_args!("'{}' is no checksum", shorten(text)))
            .hint("write sha256: and its 64 hexadecimal digits")
    })
}

fn source(place: Place, keyword: &str, source: String) -> Result<Source> {
    let git = ["git@", "git://", "ssh://"].iter().any(|scheme| source.starts_with(scheme));
    let file = ["http://", "https://"].iter().any(|scheme| source.starts_with(scheme));
    if keyword == "ADD" {
        if git || (file && source.ends_with(".git")) {
            return Err(
                place.unsupported("ADD of a repository", "RUN git clone, with a policy that allows it")
            );
        }
        if file {
            return Ok(Source::Address(source));
        }
        if is_archive(&source) {
            return Err(place.unsupported("ADD of an archive", "COPY it and RUN tar -xf"));
        }
    } else if git || file {
        return Err(place.invalid("COPY takes files of the context, not an address").hint("ADD fetches one"));
    }
    Ok(Source::Path(source))
}

fn is_archive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn unknown(place: Place, keyword: &str) -> Error {
    if keyword == "ONBUILD" {
        return place.unsupported(keyword, "write the instruction where it is to run");
    }
    place.invalid(format_args!("there is no instruction '{}'", shorten(keyword))).hint(
        "instructions are FROM, ARG, RUN, COPY, ADD, ENV, WORKDIR, USER, CMD, ENTRYPOINT, EXPOSE, LABEL and SHELL",
    )
}

/// A list of texts in JSON, if it is one.
fn json(text: &str) -> Option<Vec<String>> {
    if text.starts_with('[') { serde_json::from_str(text).ok() } else { None }
}

fn command(text: &str) -> Command {
    json(text).map_or_else(|| Command::Shell(text.to_owned()), Command::Argv)
}

/// One line of at most [`SHOWN_CHARS`].
pub(crate) fn shown(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = one_line.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect();
    if one_line.chars().nth(SHOWN_CHARS).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
