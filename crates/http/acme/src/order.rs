//! One order at a server of ACME. That server is not believed: it can ask us to prove what we asked for, and nothing
//! else.

use std::time::Duration;

use atoll_core::secret::Secret;
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::state::Answer;

/// How long a server may take to look at our answers, and then to issue.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often it is asked meanwhile: doubles from the first.
const ASK_FIRST: Duration = Duration::from_millis(500);
/// Bounds of a token (RFC 8555, section 8.1: 128 bits at least, in the alphabet of base64url).
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 22..=256;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// The server of ACME, or the way to it.
    #[error(transparent)]
    Acme(#[from] Error),
    /// It wants something that we do not do.
    #[error("{0}")]
    Refused(String),
    /// Our own side: the hook, the database.
    #[error("{0}")]
    Own(String),
}

/// How we prove that the names are ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Http,
    Dns,
}

impl Way {
    const fn kind(self) -> ChallengeType {
        match self {
            Self::Http => ChallengeType::Http01,
            Self::Dns => ChallengeType::Dns01,
        }
    }
}

/// What was issued.
#[derive(Debug)]
pub(crate) struct Fulfilled {
    pub(crate) chain_pem: String,
    pub(crate) key_pem: Secret,
}

/// Whether a text can be a token.
pub(crate) fn is_token(text: &str) -> bool {
    TOKEN_BYTES.contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Begins an order, and gives the answers to its challenges that are to be published.
pub(crate) async fn begin(
    account: &Account,
    names: &[String],
    way: Way,
) -> Result<(Order, Vec<Answer>), Failed> {
    let identifiers: Vec<_> = names.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    if order.state().authorizations.len() > names.len() {
        return Err(refused("it wants more names proved than were asked for"));
    }
    let mut answers = Vec::new();
    let mut all = order.authorizations();
    while let Some(one) = all.next().await {
        let mut one = one?;
        let name = one.identifier().to_string();
        // If our hook published the proof for a name that is not ours, it would prove that name for somebody else's
        // order.
        if !names.contains(&name) {
            return Err(refused("it wants a name proved that was not asked for"));
        }
        match one.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            other => return Err(refused(format!("the authorization of {name} is {other:?}"))),
        }
        let challenge = one.challenge(way.kind()).ok_or_else(|| {
            refused(match way {
                Way::Http => format!("it does not prove {name} over HTTP"),
                Way::Dns => format!("it does not prove {name} by records of the domain"),
            })
        })?;
        if !is_token(&challenge.token) {
            return Err(refused("its token is none"));
        }
        let key = challenge.key_authorization();
        answers.push(match way {
            Way::Http => Answer { at: challenge.token.clone(), value: key.as_str().to_owned() },
            Way::Dns => {
                let base = name.strip_prefix("*.").unwrap_or(&name);
                Answer { at: format!("_acme-challenge.{base}."), value: key.dns_value() }
            }
        });
    }
    Ok((order, answers))
}

/// Goes on with an order whose answers are published.
pub(crate) async fn finish(mut order: Order, names: &[String], way: Way) -> Result<Fulfilled, Failed> {
    let retry = RetryPolicy::new().initial_delay(ASK_FIRST).timeout(PATIENCE);
    let mut all = order.authorizations();
    while let Some(one) = all.next().await {
        let mut one = one?;
        if one.status == AuthorizationStatus::Pending
            && let Some(mut challenge) = one.challenge(way.kind())
        {
            challenge.set_ready().await?;
        }
    }
    if order.poll_ready(&retry).await? != OrderStatus::Ready {
        return Err(why_invalid(&mut order).await);
    }
    let made = |error: rcgen::Error| Failed::Own(format!("no key can be made: {error}"));
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(made)?;
    let mut params = CertificateParams::new(names.to_vec()).map_err(made)?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(made)?;
    order.finalize_csr(request.der()).await?;
    let chain_pem = order.poll_certificate(&retry).await?;
    Ok(Fulfilled { chain_pem, key_pem: Secret::new(key.serialize_pem()) })
}

fn refused(why: impl Into<String>) -> Failed {
    Failed::Refused(format!("the server of ACME cannot be followed: {}", why.into()))
}

/// Which challenge was not met, and why.
async fn why_invalid(order: &mut Order) -> Failed {
    let mut why = Vec::new();
    let mut all = order.authorizations();
    while let Some(Ok(mut one)) = all.next().await {
        if one.refresh().await.is_err() {
            continue;
        }
        let name = one.identifier().to_string();
        let problems = one.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        why.extend(problems.map(|problem| format!("{name}: {problem}")));
    }
    Failed::Refused(format!("the server of ACME does not see that the names are ours: {}", why.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use instant_acme::{BodyWrapper, BytesResponse, HttpClient, NewAccount};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn tokens_are_of_one_alphabet() {
        assert!(is_token("LoqXcYV8q5ONbJQxbmR7SCTNo3tiAXDfowyjxAjEuX0"));
        let broken = "LoqXcYV8q5ONbJQxbmR7SC\r\nX: y-----";
        for text in ["", "short", "../../../../etc/passwd-and-more", broken, "äääääääääääääääää"]
        {
            assert!(!is_token(text), "{text}");
        }
        assert!(!is_token(&"a".repeat(257)));
    }

    /// A server of ACME with these authorizations.
    struct Fake(Vec<Value>);

    impl HttpClient for Fake {
        fn request(
            &self,
            request: Request<BodyWrapper<Bytes>>,
        ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
            let at = |path: &str| format!("https://ca.test{path}");
            let path = request.uri().path();
            let body = match path {
                "/directory" => {
                    json!({"newNonce": at("/nonce"), "newAccount": at("/account"), "newOrder": at("/order")})
                }
                "/order" => {
                    let all: Vec<_> = (0..self.0.len()).map(|number| at(&format!("/of/{number}"))).collect();
                    json!({"status": "pending", "authorizations": all, "finalize": at("/finalize")})
                }
                path => match path.strip_prefix("/of/") {
                    Some(number) => self.0[number.parse::<usize>().unwrap()].clone(),
                    None => Value::Null,
                },
            };
            let response = Response::builder().header("Replay-Nonce", "once").header("Location", at("/it"));
            let response = response.body(Full::new(Bytes::from(body.to_string()))).unwrap();
            Box::pin(async move { Ok(BytesResponse::from(response)) })
        }
    }

    async fn begun(authorizations: Vec<Value>) -> Result<Vec<Answer>, String> {
        let draft = NewAccount { contact: &[], terms_of_service_agreed: true, only_return_existing: false };
        let builder = Account::builder_with_http(Box::new(Fake(authorizations)));
        let made = builder.create(&draft, "https://ca.test/directory".to_owned(), None).await;
        let (account, _credentials) = made.unwrap();
        let names = ["boxes.test".to_owned(), "*.boxes.test".to_owned()];
        begin(&account, &names, Way::Dns)
            .await
            .map(|(_, answers)| answers)
            .map_err(|failed| failed.to_string())
    }

    fn authorization(name: &str, wildcard: bool, kind: &str, token: &str) -> Value {
        json!({
            "identifier": {"type": "dns", "value": name}, "wildcard": wildcard, "status": "pending",
            "challenges": [{"type": kind, "url": "https://ca.test/challenge", "status": "pending", "token": token}],
        })
    }

    #[tokio::test]
    async fn it_can_ask_for_nothing_else_than_what_was_ordered() {
        const TOKEN: &str = "LoqXcYV8q5ONbJQxbmR7SCTNo3tiAXDfowyjxAjEuX0";
        let ours = || authorization("boxes.test", false, "dns-01", TOKEN);
        let below = || authorization("boxes.test", true, "dns-01", TOKEN);
        let answers = begun(vec![ours(), below()]).await.unwrap();
        assert!(
            answers
                .iter()
                .all(|answer| answer.at == "_acme-challenge.boxes.test." && answer.value.len() == 43)
        );
        assert_eq!(answers.len(), 2);
        for (all, why) in [
            (vec![authorization("bank.test", false, "dns-01", TOKEN)], "was not asked for"),
            (vec![authorization("x.boxes.test", false, "dns-01", TOKEN)], "was not asked for"),
            (vec![authorization("bank.test; rm -rf /", true, "dns-01", TOKEN)], "was not asked for"),
            (vec![ours(), below(), ours()], "more names"),
            (vec![authorization("boxes.test", false, "dns-01", "a b")], "token"),
            (vec![authorization("boxes.test", false, "http-01", TOKEN)], "records of the domain"),
            (vec![Value::Null], "JSON"),
        ] {
            let failed = begun(all).await.unwrap_err();
            assert!(failed.contains(why), "{failed}");
        }
        let mut over = ours();
        over["status"] = json!("deactivated");
        assert!(begun(vec![over]).await.unwrap_err().contains("Deactivated"));
    }
}
