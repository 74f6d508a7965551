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
    /// What was passed over because it means nothing here, for the build's log.
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
    /// What it is to be built for, and where that is written; must be what the host is.
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
    /// What.
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
    /// Runs a command.
    Run(Command),
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

/// `COPY` or `ADD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// What.
    pub sources: Vec<Source>,
    /// Whereto.
    pub destination: String,
    /// Stage or image to copy from; the context when absent.
    pub from: Option<String>,
    /// Owner of the copies.
    pub chown: Option<String>,
    /// Permission bits of the copies.
    pub chmod: Option<u32>,
    /// It was written `ADD`.
    pub add: bool,
}

/// What is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A path or pattern.
    Path(String),
    /// A file that stands in the Dockerfile.
    Inline {
        /// Its name.
        name: String,
        /// Its content.
        content: String,
    },
}
