//! What both front ends make: stages of instructions. Values are as they were written; variables are put in when
//! a stage is planned.

use crate::place::Place;

/// A whole build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The escape character of the text.
    pub escape: char,
    /// Whether `$` means a variable. A step list has none: its values stand for themselves.
    pub variables: bool,
    /// `ARG`s before the first `FROM`.
    pub args: Vec<Arg>,
    /// In the order in which they were written; at least one.
    pub stages: Vec<Stage>,
    /// Notes for the build's log about instructions and mounts that were ignored because they have no effect here.
    pub notes: Vec<String>,
}

/// A declared argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arg {
    /// Where.
    pub place: Place,
    /// Its name.
    pub name: String,
    /// Its value if the caller gives none.
    pub default: Option<String>,
}

/// A stage: `FROM` and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Where its `FROM` is.
    pub place: Place,
    /// What it is called, in lower case.
    pub name: Option<String>,
    /// What it begins with: an image or an earlier stage.
    pub base: String,
    /// The platform to build for, which must be the host's, and where it is written.
    pub platform: Option<(Place, String)>,
    /// What is done.
    pub instructions: Vec<Instruction>,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction {
    /// Where.
    pub place: Place,
    /// As it is shown: one line.
    pub text: String,
    /// What it does.
    pub action: Action,
}

/// A command as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A line for the shell.
    Shell(String),
    /// Program and arguments.
    Argv(Vec<String>),
}

/// What an instruction does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Runs a command, with files that it sees meanwhile.
    Run(Command, Vec<Mount>),
    /// Copies files.
    Copy(Copy),
    /// Sets variables.
    Env(Vec<(String, String)>),
    /// Declares an argument.
    Arg(Vec<Arg>),
    /// Changes the working directory.
    Workdir(String),
    /// Changes the user.
    User(String),
    /// Sets the default command.
    Cmd(Command),
    /// Sets the entry point.
    Entrypoint(Command),
    /// Names ports, for the record.
    Expose(Vec<String>),
    /// Labels, for the record.
    Label(Vec<(String, String)>),
    /// Changes the shell.
    Shell(Vec<String>),
}

impl Action {
    /// The stages and images that it takes files of, as they are named.
    pub fn takes_from(&self) -> impl Iterator<Item = &str> {
        let mut copied = None;
        let mut mounts: &[Mount] = &[];
        if let Self::Copy(copy) = self {
            copied = copy.from.as_deref();
        } else if let Self::Run(_, of_command) = self {
            mounts = of_command;
        }
        let mounted = mounts.iter().filter_map(|mount| match &mount.kind {
            MountKind::Bind { from, .. } => from.as_deref(),
            MountKind::Secret { .. } => None,
        });
        copied.into_iter().chain(mounted)
    }

    /// Whether it takes files of the context.
    #[must_use]
    pub fn takes_of_context(&self) -> bool {
        if let Self::Copy(copy) = self {
            copy.from.is_none() && copy.sources.iter().any(|source| matches!(source, Source::Path(_)))
        } else if let Self::Run(_, mounts) = self {
            mounts.iter().any(|mount| matches!(mount.kind, MountKind::Bind { from: None, .. }))
        } else {
            false
        }
    }
}

/// Files that a command sees and that are not part of the step's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where it is written.
    pub place: Place,
    /// Where the command sees it; nowhere, for a secret that is a variable only.
    pub target: Option<String>,
    /// What is mounted.
    pub kind: MountKind,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountKind {
    /// Files.
    Bind {
        /// Stage or image that they are of; the context when absent.
        from: Option<String>,
        /// File or directory there.
        source: String,
    },
    /// A secret of the build.
    Secret {
        /// What it is called.
        id: String,
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

/// `COPY` or `ADD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// What is copied.
    pub sources: Vec<Source>,
    /// Whereto.
    pub destination: String,
    /// Stage or image to copy from; the context when absent.
    pub from: Option<String>,
    /// Owner of the copies.
    pub chown: Option<String>,
    /// Permission bits of the copies.
    pub chmod: Option<u32>,
    /// Digest that what is fetched must have, as `sha256:…`.
    pub checksum: Option<String>,
    /// It was written `ADD`.
    pub add: bool,
    /// Links that the sources name are copied as links.
    pub keep_links: bool,
}

/// What is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A path or pattern.
    Path(String),
    /// A file that a server has: `http://…` or `https://…`. The only source of its `ADD`.
    Address(String),
    /// A file that stands in the Dockerfile.
    Inline {
        /// Its name.
        name: String,
        /// Its content.
        content: String,
    },
}
