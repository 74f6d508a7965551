//! How protobuf writes bytes, 64-bit numbers, enumerations and times in JSON.

/// Bytes are base64. Readers take both alphabets, with padding or without.
pub(crate) mod bytes {
    use base64::Engine as _;
    use base64::alphabet::{STANDARD, URL_SAFE};
    use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
    use bytes::Bytes;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    const LENIENT: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

    pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&GeneralPurpose::new(&STANDARD, LENIENT).encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        let url_safe = text.bytes().any(|byte| byte == b'-' || byte == b'_');
        let alphabet = if url_safe { &URL_SAFE } else { &STANDARD };
        GeneralPurpose::new(alphabet, LENIENT).decode(text).map(Bytes::from).map_err(D::Error::custom)
    }
}

/// 64-bit numbers are texts. Readers take numbers too.
pub(crate) mod int64 {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        match Either::deserialize(deserializer)? {
            Either::Number(number) => Ok(number),
            Either::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

/// Times are RFC 3339.
pub(crate) mod time {
    use serde::de::IgnoredAny;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::wire::filesystem::Timestamp;

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_str(&crate::time::rfc3339(time.seconds, time.nanos)),
            None => serializer.serialize_none(),
        }
    }

    /// No client sends the server a time.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| None)
    }
}

/// Enumerations are their names. Readers take numbers too. Makes a module for a field of such a type:
/// `json::names!(module, Type { Variant = "NAME", … })`.
macro_rules! names {
    ($module:ident, $kind:ident { $($variant:ident = $name:literal),* $(,)? }) => {
        pub(crate) mod $module {
            use serde::{Deserialize, Deserializer, Serializer};

            use super::$kind;

            #[derive(Deserialize)]
            #[serde(untagged)]
            enum Either {
                Number(i32),
                Text(String),
            }

            pub(crate) fn serialize<S: Serializer>(number: &i32, serializer: S) -> Result<S::Ok, S::Error> {
                match $kind::try_from(*number) {
                    $(Ok($kind::$variant) => serializer.serialize_str($name),)*
                    Err(_unknown) => serializer.serialize_i32(*number),
                }
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
                Ok(match Either::deserialize(deserializer)? {
                    Either::Number(number) => number,
                    Either::Text(text) => match text.as_str() {
                        $($name => $kind::$variant.into(),)*
                        _ => $kind::Unspecified.into(),
                    },
                })
            }
        }
    };
}
pub(crate) use names;

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
