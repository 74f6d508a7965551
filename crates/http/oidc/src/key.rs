//! Keys of an issuer, and what they have signed: RFC 7517 and RFC 7515, as far as issuers use them for ID tokens.
//!
//! An algorithm belongs to a kind of key. The maker of a token cannot choose it, so that no key is ever read as one for
//! another algorithm. Tokens that are not signed at all (`none`), or with a secret that both sides know (HMAC), are not
//! accepted.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// Longest part of a key, bytes: of 8192 bits.
const PART_MAX_BYTES: usize = 1024;

/// One key, as the issuer publishes it.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its name, if it has one.
    pub(crate) id: Option<String>,
    /// The only algorithm that it is for, if that is said.
    algorithm: Option<String>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// A point, not compressed.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A JSON Web Key. No [`Key`] is made of one that is not for signatures, or of a kind that we do not know.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    for_what: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Key {
    pub(crate) fn read(value: serde_json::Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.for_what.as_deref().is_some_and(|what| what != "sig") {
            return None;
        }
        let (x, y) = (part(jwk.x.as_deref()), part(jwk.y.as_deref()));
        let public = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                let number = |text: Option<&str>| part(text).map(|bytes| without_zeros(&bytes).to_vec());
                Public::Rsa { modulus: number(jwk.n.as_deref())?, exponent: number(jwk.e.as_deref())? }
            }
            ("EC", Some("P-256")) => Public::P256(point(&x?, &y?, 32)?),
            ("EC", Some("P-384")) => Public::P384(point(&x?, &y?, 48)?),
            ("OKP", Some("Ed25519")) => Public::Ed25519(x.filter(|x| x.len() == 32)?),
            _ => return None,
        };
        Some(Self { id: jwk.kid, algorithm: jwk.alg, public })
    }

    /// Whether it is for this algorithm.
    pub(crate) fn signs_with(&self, algorithm: &str) -> bool {
        self.algorithm.as_deref().is_none_or(|only| only == algorithm)
            && match &self.public {
                Public::Rsa { .. } => rsa(algorithm).is_some(),
                Public::P256(_) => algorithm == "ES256",
                Public::P384(_) => algorithm == "ES384",
                Public::Ed25519(_) => matches!(algorithm, "EdDSA" | "Ed25519"),
            }
    }

    /// Whether it has signed a message.
    pub(crate) fn has_signed(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        let by = |algorithm: &'static dyn VerificationAlgorithm, public: &[u8]| {
            UnparsedPublicKey::new(algorithm, public).verify(message, signature).is_ok()
        };
        self.signs_with(algorithm)
            && match &self.public {
                Public::Rsa { modulus, exponent } => rsa(algorithm).is_some_and(|parameters| {
                    let public = RsaPublicKeyComponents { n: modulus, e: exponent };
                    public.verify(parameters, message, signature).is_ok()
                }),
                Public::P256(public) => by(&ECDSA_P256_SHA256_FIXED, public),
                Public::P384(public) => by(&ECDSA_P384_SHA384_FIXED, public),
                Public::Ed25519(public) => by(&ED25519, public),
            }
    }
}

/// RSA of at least 2048 bits.
fn rsa(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn part(text: Option<&str>) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text?).ok().filter(|bytes| (1..=PART_MAX_BYTES).contains(&bytes.len()))
}

/// Some issuers write numbers with zeros before them.
fn without_zeros(bytes: &[u8]) -> &[u8] {
    let from = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    &bytes[from..]
}

fn point(x: &[u8], y: &[u8], length: usize) -> Option<Vec<u8>> {
    (x.len() == length && y.len() == length).then(|| [&[4], x, y].concat())
}
