//! `RUN --mount`: files that a command sees and that are not part of the step's result.
//!
//! A step must work without a cache, so a cache mount is ignored, and the build's log says so. Files of the context, of
//! another stage or an image, and secrets are put in their place before the command and taken away after it.

use atoll_core::error::shorten;
use atoll_core::limits::SECRET_NAME_MAX_BYTES;
use atoll_core::{Result, spec};

use crate::copy::{self, Selection};
use crate::graph::{self, Origin};
use crate::key::Key;
use crate::parse::{check_name, mode};
use crate::place::Place;
use crate::plan::{Planner, Stage, placed};
use crate::recipe::{Mount, MountKind, Source};

/// Most mounts of one command.
pub(crate) const MOUNTS_MAX_COUNT: usize = 32;
/// Where secrets are that say no place.
const SECRETS: &str = "/run/secrets";
/// Permissions of a secret that says none.
const SECRET_MODE: u32 = 0o400;

/// Reads the value of one `--mount`; `None` for a cache, with a note.
pub(crate) fn parse(place: Place, text: &str, notes: &mut Vec<String>) -> Result<Option<Mount>> {
    let mut fields = Fields { place, kind: "bind", fields: Vec::new() };
    for field in text.split(',') {
        let (name, value) = match field.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (field, None),
        };
        match (name, value) {
            ("type", Some(kind)) => fields.kind = kind,
            _ => fields.fields.push((name, value)),
        }
    }
    match fields.kind {
        "cache" => {
            notes.push(format!(
                "{place}: RUN --mount=type=cache begins empty: whole steps are kept between builds instead"
            ));
            Ok(None)
        }
        "bind" => fields.bind().map(Some),
        "secret" => fields.secret().map(Some),
        "tmpfs" => {
            Err(place.unsupported("RUN --mount=type=tmpfs", "use /dev/shm, which is kept in no image"))
        }
        "ssh" => {
            Err(place.unsupported("RUN --mount=type=ssh", "give the key as a secret: --mount=type=secret"))
        }
        other => Err(place.invalid(format_args!("there is no mount of the type '{}'", shorten(other)))),
    }
}

/// The fields of a mount, which commas separate.
struct Fields<'a> {
    place: Place,
    kind: &'a str,
    fields: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Fields<'a> {
    /// Takes the value of a field out, whichever of its names it has.
    fn take(&mut self, names: &[&str]) -> Result<Option<&'a str>> {
        let Some(at) = self.fields.iter().position(|(name, _)| names.contains(name)) else { return Ok(None) };
        let (name, value) = self.fields.remove(at);
        match value.filter(|value| !value.is_empty()) {
            Some(value) => Ok(Some(value)),
            None => Err(self.place.invalid(format_args!("{name} of --mount wants a value"))),
        }
    }

    /// Takes a switch out. A switch is on without a value, or has the value true or false.
    fn switch(&mut self, names: &[&str]) -> Result<bool> {
        let Some(at) = self.fields.iter().position(|(name, _)| names.contains(name)) else {
            return Ok(false);
        };
        match self.fields.remove(at) {
            (_, None | Some("true" | "1")) => Ok(true),
            (_, Some("false" | "0")) => Ok(false),
            (name, Some(_)) => Err(self.place.invalid(format_args!("{name} of --mount is true or false"))),
        }
    }

    /// Refuses the fields that are left: this kind of mount does not have them.
    fn done(&self) -> Result<()> {
        let Some((name, _)) = self.fields.first() else { return Ok(()) };
        let (kind, name) = (self.kind, shorten(name));
        Err(self.place.invalid(format_args!("a mount of the type {kind} has no '{name}'")))
    }

    fn bind(mut self) -> Result<Mount> {
        let from = self.take(&["from"])?.map(str::to_owned);
        let source = self.take(&["source", "src"])?.unwrap_or(".").to_owned();
        let target = self.take(&["target", "dst", "destination"])?.map(str::to_owned);
        // Files that a command writes there are gone after it, so there is nothing to protect.
        self.switch(&["readonly", "ro"])?;
        self.switch(&["readwrite", "rw"])?;
        self.done()?;
        if target.is_none() {
            return Err(self.place.invalid("--mount wants a target").hint("add target=/a/path"));
        }
        Ok(Mount { place: self.place, target, kind: MountKind::Bind { from, source } })
    }

    fn secret(mut self) -> Result<Mount> {
        let place = self.place;
        let mut target = self.take(&["target", "dst", "destination"])?.map(str::to_owned);
        let named = self.take(&["id", "source", "src"])?.map(str::to_owned);
        let last = target.as_deref().and_then(|target| target.rsplit('/').next());
        let Some(id) = named.or_else(|| last.map(str::to_owned)) else {
            return Err(place
                .invalid("a secret wants an id")
                .hint("add id=NAME, as in --build-secret id=NAME"));
        };
        if !is_secret_id(&id) {
            return Err(place.invalid(format_args!("'{}' is no id of a secret", shorten(&id))));
        }
        let env = self.take(&["env"])?.map(str::to_owned);
        if let Some(name) = &env {
            check_name(place, name)?;
        } else {
            target.get_or_insert_with(|| format!("{SECRETS}/{id}"));
        }
        let mode = self.take(&["mode"])?.map(|text| mode(place, text)).transpose()?.unwrap_or(SECRET_MODE);
        let uid = self.number(&["uid"])?;
        let gid = self.number(&["gid"])?;
        let required = self.switch(&["required"])?;
        self.done()?;
        let kind = MountKind::Secret { id, env, mode, owner: format!("{uid}:{gid}"), required };
        Ok(Mount { place, target, kind })
    }

    fn number(&mut self, names: &[&str]) -> Result<u32> {
        let Some(text) = self.take(names)? else { return Ok(0) };
        text.parse().map_err(|_none| self.place.invalid(format_args!("'{}' is no number", shorten(text))))
    }
}

/// Files that a command sees and that are not part of the step's result. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mounted {
    /// Files of the context.
    Context {
        /// The files.
        selection: Selection,
        /// Where they are seen.
        target: String,
    },
    /// A file or directory of another stage or an image.
    From {
        /// From where.
        from: Origin,
        /// The path there.
        source: String,
        /// Where it is seen.
        target: String,
    },
    /// A secret of the build.
    Secret {
        /// What it is called.
        id: String,
        /// Where it is seen.
        target: Option<String>,
        /// Variable that has its value.
        env: Option<String>,
        /// Permission bits.
        mode: u32,
        /// Owner, as `uid:gid`.
        owner: String,
        /// Without it the step fails.
        required: bool,
    },
}

impl Stage<'_> {
    /// Resolves a mount, and adds to the cache key: of files their contents, of a secret its name. The value of a
    /// secret is not part of a step's result.
    pub(crate) fn mount(
        &self,
        mount: &Mount,
        origin_key: &dyn Fn(&Origin) -> Result<Key>,
        identity: &mut Vec<Vec<u8>>,
    ) -> Result<Mounted> {
        let place = mount.place;
        let target = mount.target.as_ref().map(|target| {
            let path = copy::absolute(self.state.cwd(), &self.expand(place, target)?);
            spec::path("target", &path).map_err(|error| placed(place, &error))?;
            if path == "/" { Err(place.invalid("the target of a mount is the root")) } else { Ok(path) }
        });
        let target = target.transpose()?;
        let seen = target.clone().unwrap_or_default();
        identity.push(seen.clone().into_bytes());
        Ok(match &mount.kind {
            MountKind::Bind { from: None, source } => {
                let source = [Source::Path(self.expand(place, source)?)];
                let Planner { context, ignore, budget, .. } = *self.planner;
                let from = copy::Files { context, ignore, keep_links: false, budget };
                let selection = copy::select(place, &source, &seen, from)?;
                identity.push(selection.digest().to_vec());
                Mounted::Context { selection, target: seen }
            }
            MountKind::Bind { from: Some(from), source } => {
                let from = graph::source(self.planner.recipe, self.index, place, from)?;
                let source = copy::absolute("/", &self.expand(place, source)?);
                identity.extend([origin_key(&from)?.to_hex().into_bytes(), source.clone().into_bytes()]);
                Mounted::From { from, source, target: seen }
            }
            MountKind::Secret { id, env, mode, owner, required } => {
                let how = format!("{id} {} {mode:o} {owner}", env.as_deref().unwrap_or_default());
                identity.push(how.into_bytes());
                let (id, env, owner) = (id.clone(), env.clone(), owner.clone());
                Mounted::Secret { id, target, env, mode: *mode, owner, required: *required }
            }
        })
    }
}

/// Whether a secret of a build can be called so.
#[must_use]
pub fn is_secret_id(id: &str) -> bool {
    (1..=SECRET_NAME_MAX_BYTES).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !id.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::Code;

    const PLACE: Place = Place::Line { line: 3, column: 5 };

    fn read(text: &str) -> Result<Option<Mount>> {
        parse(PLACE, text, &mut Vec::new())
    }

    #[test]
    fn what_is_written() {
        let bind = |from: Option<&str>, source: &str| MountKind::Bind {
            from: from.map(str::to_owned),
            source: source.to_owned(),
        };
        for (text, target, kind) in [
            ("target=/src", "/src", bind(None, ".")),
            ("type=bind,source=a.txt,dst=b.txt,ro", "b.txt", bind(None, "a.txt")),
            ("type=bind,from=tools,src=/bin/x,target=/x,rw=true", "/x", bind(Some("tools"), "/bin/x")),
        ] {
            let mount = read(text).unwrap().unwrap();
            assert_eq!((mount.target.as_deref(), mount.kind), (Some(target), kind), "{text}");
        }
        let secret = |text: &str| match read(text).unwrap().unwrap() {
            Mount { target, kind: MountKind::Secret { id, env, mode, owner, required }, .. } => {
                format!("{id} {target:?} {env:?} {mode:o} {owner} {required}")
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(secret("type=secret,id=key"), "key Some(\"/run/secrets/key\") None 400 0:0 false");
        let all = "type=secret,id=key,env=KEY,dst=/k,mode=0440,uid=5,gid=6,required";
        assert_eq!(secret(all), "key Some(\"/k\") Some(\"KEY\") 440 5:6 true");
        assert_eq!(secret("type=secret,id=key,env=KEY"), "key None Some(\"KEY\") 400 0:0 false");
        assert_eq!(secret("type=secret,target=/etc/npmrc"), "npmrc Some(\"/etc/npmrc\") None 400 0:0 false");
        let mut notes = Vec::new();
        assert_eq!(parse(PLACE, "type=cache,target=/c", &mut notes).unwrap(), None);
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn what_is_wrong() {
        for (text, code) in [
            ("type=bind", Code::BuildFileInvalid),
            ("type=bind,target=", Code::BuildFileInvalid),
            ("type=bind,target=/a,size=1", Code::BuildFileInvalid),
            ("type=secret", Code::BuildFileInvalid),
            ("type=secret,id=a/b", Code::BuildFileInvalid),
            ("type=secret,id=..", Code::BuildFileInvalid),
            ("type=secret,id=a,mode=rw", Code::BuildFileInvalid),
            ("type=secret,id=a,env=a-b", Code::BuildFileInvalid),
            ("type=secret,id=a,uid=root", Code::BuildFileInvalid),
            ("type=secret,id=a,required=perhaps", Code::BuildFileInvalid),
            ("type=ssh", Code::InstructionUnsupported),
            ("type=tmpfs,target=/x", Code::InstructionUnsupported),
            ("type=other", Code::BuildFileInvalid),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.code, code, "{text}: {error}");
            assert!(error.message.starts_with("line 3, column 5: "), "{error}");
        }
    }
}
