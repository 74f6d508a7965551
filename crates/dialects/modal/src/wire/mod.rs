//! The messages of the two services: those that are served, with the fields that the server reads or sets.
//! `tests/modal/test_wire.py` compares them with the descriptors of the installed client.

pub(crate) mod apps;
pub(crate) mod common;
pub(crate) mod content;
pub(crate) mod files;
pub(crate) mod images;
pub(crate) mod router;
pub(crate) mod sandboxes;

/// Declares messages. Unknown fields are ignored.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($body:tt)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, prost::Message)]
            pub(crate) struct $name { $($body)* }
        )*
    };
}
pub(crate) use messages;
