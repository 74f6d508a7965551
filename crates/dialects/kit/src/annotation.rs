//! Values that a protocol must say back and the engine has no field for: JSON in one annotation of the sandbox, under
//! the dialect's key, so that they live and die with the sandbox.

use atoll_core::Error;
use atoll_store::SandboxRecord;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads the annotation with this key. Gives the default when the annotation is missing or cannot be parsed, as on a
/// sandbox that another API made.
#[must_use]
pub fn read<T: DeserializeOwned + Default>(record: &SandboxRecord, key: &str) -> T {
    let text = record.annotations.get(key);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The text of the annotation.
///
/// # Errors
/// [`atoll_core::Code::InvalidArgument`] when it cannot be JSON, as with a map whose keys are no texts.
pub fn text<T: Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::invalid("body", error))
}
