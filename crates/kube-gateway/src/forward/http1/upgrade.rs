//! Upgraded connections: WebSocket and SPDY, for exec, attach, port-forward and proxies.

use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use super::body::AnswerBody;
use crate::exchange::Exchange;
use crate::forward::answer;
use crate::forward::fields::remove_hop_by_hop;

/// A request to upgrade the connection.
pub struct Upgrade {
    /// The protocols that the client names.
    pub protocol: HeaderValue,
    client: OnUpgrade,
}

impl Upgrade {
    /// Returns the upgrade that a request asks for. Only HTTP/1.1 has upgrades.
    pub fn of(request: &mut Request<Incoming>) -> Option<Upgrade> {
        if request.version() != Version::HTTP_11 || !names_upgrade(request.headers()) {
            return None;
        }
        let protocol = request.headers().get(UPGRADE)?.clone();
        Some(Upgrade { protocol, client: hyper::upgrade::on(request) })
    }
}

fn names_upgrade(fields: &HeaderMap) -> bool {
    let values = fields.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|name| name.trim().eq_ignore_ascii_case("upgrade"))
}

/// Passes an answer with status 101 on, and connects both sides. An API server that switches without
/// having been asked gets no tunnel: what the client sends next would reach it unchecked.
pub fn switch(
    upgrade: Option<Upgrade>,
    mut answer: Response<Incoming>,
    exchange: Exchange,
) -> Response<AnswerBody> {
    let Some(upgrade) = upgrade else {
        let message = "kube-gateway: the API server upgraded a request that did not ask for it";
        let answer = answer::status(StatusCode::BAD_GATEWAY, message, None);
        return answer.map(|text| AnswerBody::own(text).with_exchange(exchange));
    };
    let server = hyper::upgrade::on(&mut answer);
    tokio::spawn(tunnel(upgrade.client, server, exchange));
    let protocol = answer.headers().get(UPGRADE).cloned();
    let fields = answer.headers_mut();
    remove_hop_by_hop(fields);
    fields.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    fields.insert(UPGRADE, protocol.unwrap_or(upgrade.protocol));
    answer.map(|_| AnswerBody::own(String::new()))
}

/// Forwards the bytes of both sides until both have ended, or one fails.
async fn tunnel(client: OnUpgrade, server: OnUpgrade, mut exchange: Exchange) {
    let result: Result<(Upgraded, Upgraded), hyper::Error> = tokio::try_join!(client, server);
    let copied = match result {
        Ok((client, server)) => {
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        }
        Err(error) => Err(std::io::Error::other(error)),
    };
    match copied {
        Ok((_, from_server)) => exchange.count(usize::try_from(from_server).unwrap_or(usize::MAX)),
        Err(error) => {
            tracing::debug!(%error, "tunnel");
            exchange.failed();
        }
    }
}
