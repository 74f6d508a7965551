//! The messages of envd, the agent that the clients believe to be in every sandbox: once as protobuf, once as
//! the JSON that protobuf defines for it. The tags and names are the contract.

pub(crate) mod filesystem;
pub(crate) mod json;
pub(crate) mod process;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message in both forms.
pub(crate) trait Message:
    prost::Message + Default + Serialize + DeserializeOwned + Send + 'static
{
}

impl<M: prost::Message + Default + Serialize + DeserializeOwned + Send + 'static> Message for M {}

/// Declares messages. Fields that are not set are left out of the JSON, unknown ones are ignored.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($body:tt)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            pub(crate) struct $name { $($body)* }
        )*
    };
}
pub(crate) use messages;
