//! Where in a Dockerfile or step list an error is, for the author of that file.

use std::fmt;

use atoll_core::{Code, Error};

/// A place in a Dockerfile or in a step list. Counts from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a Dockerfile.
    Line {
        /// The line.
        line: u32,
        /// The column, in characters.
        column: u32,
    },
    /// In a step list.
    Step(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, column } => write!(f, "line {line}, column {column}"),
            Self::Step(number) => write!(f, "step {number}"),
        }
    }
}

impl Place {
    /// An error about this place.
    #[must_use]
    pub fn error(self, code: Code, what: impl fmt::Display) -> Error {
        Error::new(code, format!("{self}: {what}"))
    }

    /// The text is wrong.
    #[must_use]
    pub fn invalid(self, what: impl fmt::Display) -> Error {
        self.error(Code::BuildFileInvalid, what)
    }

    /// The text is right, but not something that a build does here.
    #[must_use]
    pub fn unsupported(self, what: impl fmt::Display, hint: &str) -> Error {
        self.error(Code::InstructionUnsupported, format_args!("{what} is not supported")).hint(hint)
    }
}
