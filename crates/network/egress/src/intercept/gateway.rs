//! The interceptor as the gateway knows it.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::policy::{EgressPolicy, HostName, Sender};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::upstream::Io;
use super::{Admitted, OutBody, TlsInterceptor, Way, session};
use crate::budget::Budget;
use crate::connection::Dialer;
use crate::interceptor::{Answer, Ask, Flow, Interceptor, Protocol};

/// A connection of the gateway, meant by the host that it is intercepted for.
#[derive(Debug)]
struct ByDialer {
    dialer: Dialer,
    host: HostName,
    encrypted: bool,
}

#[async_trait]
impl Way for ByDialer {
    fn sandbox(&self) -> &SandboxId {
        self.dialer.sandbox()
    }

    fn host(&self) -> &HostName {
        &self.host
    }

    fn port(&self) -> u16 {
        self.dialer.address().port()
    }

    fn encrypted(&self) -> bool {
        self.encrypted
    }

    fn sender(&self) -> Option<&Sender> {
        self.dialer.sender()
    }

    fn budget(&self) -> &Arc<Budget> {
        &self.dialer.context.net.budget
    }

    fn policy(&self) -> Arc<EgressPolicy> {
        self.dialer.policy()
    }

    fn allowed_by_rules(&self, policy: &EgressPolicy, method: &str, path: &str) -> bool {
        self.dialer.allowed_by_rules(policy, method, path)
    }

    fn admit(&self, method: &str, path: &str) -> Result<Admitted, Box<http::Response<OutBody>>> {
        let scheme = if self.encrypted { "https" } else { "http" };
        match self.dialer.admit(scheme, method, path) {
            Ok(admitted) => Ok(Arc::new(admitted)),
            Err(refusal) => {
                Err(Box::new(refusal.response().map(|body| body.map_err(|never| match never {}).boxed())))
            }
        }
    }

    async fn dial(&self) -> io::Result<Box<dyn Io>> {
        let stream = self.dialer.connect().await.map_err(io::Error::other)?;
        Ok(Box::new(stream))
    }
}

/// Whether some rule is for requests on such a connection.
fn covered(ask: &Ask<'_>) -> bool {
    let (port, encrypted) = (ask.address.port(), ask.protocol == Protocol::Tls);
    ask.policy.inject.iter().any(|rule| rule.covers(ask.name, port, encrypted, ask.sender))
}

#[async_trait]
impl Interceptor for TlsInterceptor {
    fn wants(&self, ask: &Ask<'_>) -> bool {
        covered(ask)
    }

    async fn serve(&self, flow: Flow, dialer: Dialer) -> io::Result<()> {
        let encrypted = flow.protocol == Protocol::Tls;
        let way = Arc::new(ByDialer { dialer, host: flow.name, encrypted });
        let shared = Arc::clone(&self.shared);
        // When the connection is no longer allowed the gateway drops this, and every part of it ends with it,
        // connections outside included.
        if encrypted {
            session::serve_tls(shared, way, flow.client).await
        } else {
            session::serve_plain(shared, way, flow.client).await
        }
    }

    async fn answer(&self, request: http::Request<Incoming>, name: HostName, dialer: Dialer) -> Answer {
        let cancel = dialer.cancelled();
        let way = Arc::new(ByDialer { dialer, host: name, encrypted: false });
        let (response, tasks) = session::answer_one(Arc::clone(&self.shared), way, request).await;
        // The connection outside ends when the answer has been passed on, or when it is no longer allowed.
        tokio::spawn(async move {
            tokio::select! {
                () = tasks.join() => {}
                () = cancel.cancelled() => {}
            }
        });
        response.map(BodyExt::boxed_unsync)
    }
}
