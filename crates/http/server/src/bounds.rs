//! The bounds of numbers in requests. What the handlers enforce is what the OpenAPI document says: both come from here.

use atoll_core::limits::{PAGE_DEFAULT_COUNT, PAGE_MAX_COUNT, WAIT_MAX_MS};
use atoll_core::{Error, Result};
use utoipa::openapi::schema::{KnownFormat, Object, ObjectBuilder, SchemaFormat, Type};

/// Most bytes of output in one page.
pub(crate) const OUTPUT_MAX_BYTES: usize = 1 << 20;

/// How long a request waits, milliseconds.
pub(crate) const WAIT: Bounds = Bounds::new("wait_ms", 0, WAIT_MAX_MS, 0);
/// Items of a page. The engine enforces it for the lists that it pages by itself, by the same constants.
pub(crate) const PAGE: Bounds = Bounds::new("limit", 1, PAGE_MAX_COUNT as u64, PAGE_DEFAULT_COUNT as u64);
/// Events of a journal in one page.
pub(crate) const EVENTS: Bounds = Bounds::new("limit", 1, 10_000, 1000);
/// Entries of a directory.
pub(crate) const ENTRIES: Bounds = Bounds::new("limit", 1, 100_000, 10_000);
/// Levels of directories below a directory.
pub(crate) const DEPTH: Bounds = Bounds::new("depth", 1, 64, 1);
/// Files, or lines, that are found.
pub(crate) const FOUND: Bounds = Bounds::new("limit", 1, 100_000, 1000);
/// Bytes of output in one page.
pub(crate) const OUTPUT: Bounds = Bounds::new("max_bytes", 1, OUTPUT_MAX_BYTES as u64, 256 << 10);

/// The numbers that a field or parameter may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    name: &'static str,
    least: u64,
    most: u64,
    usual: u64,
}

impl Bounds {
    const fn new(name: &'static str, least: u64, most: u64, usual: u64) -> Self {
        Self { name, least, most, usual }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) const fn least(&self) -> u64 {
        self.least
    }

    pub(crate) const fn most(&self) -> u64 {
        self.most
    }

    /// What was asked for, or what is usual.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`], naming the field, when it lies outside.
    pub(crate) fn of<T: Copy + TryInto<u64> + TryFrom<u64>>(&self, asked: Option<T>) -> Result<T> {
        let Self { name, least, most, usual } = *self;
        let number = asked.map_or(Some(usual), |asked| asked.try_into().ok());
        let number = number.filter(|number| (least..=most).contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| Error::invalid(name, format_args!("must lie between {least} and {most}")))
    }

    fn schema(&self) -> Object {
        let format = SchemaFormat::KnownFormat(KnownFormat::Int64);
        let number = ObjectBuilder::new().schema_type(Type::Integer).format(Some(format));
        let number = number.minimum(Some(self.least)).maximum(Some(self.most));
        number.default(Some(self.usual.into())).build()
    }
}

/// The schemas, as functions for `schema_with`.
pub(crate) fn wait_ms() -> Object {
    WAIT.schema()
}

pub(crate) fn page() -> Object {
    PAGE.schema()
}

pub(crate) fn events() -> Object {
    EVENTS.schema()
}

pub(crate) fn entries() -> Object {
    ENTRIES.schema()
}

pub(crate) fn depth() -> Object {
    DEPTH.schema()
}

pub(crate) fn output() -> Object {
    OUTPUT.schema()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_is_refused() {
        assert_eq!(PAGE.of(None::<u32>).unwrap(), 100);
        for (asked, fits) in [(0, false), (1, true), (1000, true), (1001, false), (u32::MAX, false)] {
            assert_eq!(PAGE.of(Some(asked)).ok(), fits.then_some(asked), "{asked}");
        }
        assert_eq!(WAIT.of(Some(0_u64)).unwrap(), 0);
        let error = WAIT.of(Some(60_001_u64)).unwrap_err();
        assert_eq!(error.message, "wait_ms: must lie between 0 and 60000");
    }
}
