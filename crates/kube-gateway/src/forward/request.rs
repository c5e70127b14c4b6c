//! Forwards one request.

use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE,
};
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;

use super::answer;
use super::body::{AnswerBody, RequestBody};
use super::fields::remove_hop_by_hop;
use super::framing::Framing;
use super::link::{Link, SendError};
use super::shared::Shared;
use super::upgrade::{self, Upgrade};
use super::watch::WatchEnd;
use crate::exchange::Exchange;
use crate::identity::{Credential, Peer};
use crate::request_info::{RequestInfo, query_values};
use crate::upstream::Speaker;

/// From which client a request came. kube-apiserver writes it into audit events.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A connected client.
pub struct Client {
    /// Its certificates.
    pub peer: Peer,
    /// Its address without the port, as the value of a header field.
    pub address: HeaderValue,
    /// Its connection to an API server.
    pub link: Link,
    /// What all connections share.
    pub shared: Arc<Shared>,
}

/// Forwards a request and returns its answer. It is an answer of the gateway if no API server gave
/// one.
pub async fn forward(client: Arc<Client>, request: Request<Incoming>) -> Response<AnswerBody> {
    let info = RequestInfo::new(request.method(), request.uri());
    let watch = watch_of(&info, request.uri());
    let metrics = client.shared.metrics.clone();
    let mut exchange = Exchange::new(&request, info, client.shared.sample(), metrics);
    let own = match admit(&client, &request) {
        Err(refusal) => *refusal,
        Ok(credential) => {
            let (upstream, upgrade) = prepare(&client, request, &credential);
            match client.link.send(upstream, speaker(&credential), &mut exchange).await {
                Ok(answer) => return finish(&client, answer, upgrade, watch, exchange),
                Err(error) => own_answer(error),
            }
        }
    };
    exchange.answered(own.status());
    own.map(|body| body.with_exchange(exchange))
}

/// Checks what can be refused without an API server.
fn admit(
    client: &Client,
    request: &Request<Incoming>,
) -> Result<Credential, Box<Response<AnswerBody>>> {
    if request.method() == Method::CONNECT {
        let message = "kube-gateway: the method CONNECT is not supported";
        return Err(answer::status(StatusCode::METHOD_NOT_ALLOWED, message, None).into());
    }
    match client.peer.credential(request.headers()) {
        Credential::Rejected => {
            Err(answer::status(StatusCode::UNAUTHORIZED, "Unauthorized", None).into())
        }
        credential => Ok(credential),
    }
}

fn speaker(credential: &Credential) -> Speaker {
    match credential {
        Credential::Certificate(_) => Speaker::FrontProxy,
        Credential::Request | Credential::Rejected => Speaker::Client,
    }
}

/// Turns a client's request into one for an API server. The order matters: what the client's
/// `Connection` names goes first, then its claims, and only then the gateway's own fields are added.
fn prepare(
    client: &Client,
    mut request: Request<Incoming>,
    credential: &Credential,
) -> (Request<RequestBody>, Option<Upgrade>) {
    let upgrade = Upgrade::of(&mut request);
    let (mut parts, body) = request.into_parts();
    let fields = &mut parts.headers;
    remove_hop_by_hop(fields);
    client.shared.names.remove_claims(fields);
    fields.insert(X_FORWARDED_FOR, client.address.clone());
    if let Credential::Certificate(identity) = credential {
        identity.add_to(fields);
    }
    if let Some(upgrade) = &upgrade {
        fields.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        fields.insert(UPGRADE, upgrade.protocol.clone());
    }
    parts.uri = upstream_uri(parts.version, &parts.uri, fields);
    (Request::from_parts(parts, RequestBody::new(body)), upgrade)
}

/// HTTP/2 needs the authority in the URI, and HTTP/1.1 in the field `Host`.
fn upstream_uri(version: Version, uri: &Uri, fields: &mut HeaderMap) -> Uri {
    let mut parts = uri.clone().into_parts();
    let host = fields.get(HOST).and_then(|host| host.as_bytes().try_into().ok());
    let authority = parts.authority.take().or(host);
    if version == Version::HTTP_2 {
        fields.remove(HOST);
        parts.authority = authority.or_else(|| Some(Authority::from_static("kubernetes")));
        parts.scheme = Some(Scheme::HTTPS);
    } else {
        if let Some(value) = authority.and_then(|name| HeaderValue::try_from(name.as_str()).ok()) {
            fields.insert(HOST, value);
        }
        parts.scheme = None;
    }
    // The parts are those of a valid URI, so the original is never returned.
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// Passes the answer of an API server on.
fn finish(
    client: &Client,
    mut answer: Response<Incoming>,
    upgrade: Option<Upgrade>,
    watch: Option<InitialEvents>,
    mut exchange: Exchange,
) -> Response<AnswerBody> {
    exchange.answered(answer.status());
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return upgrade::switch(upgrade, answer, exchange);
    }
    remove_hop_by_hop(answer.headers_mut());
    let end = watch.filter(|_| answer.status() == StatusCode::OK).map(|initial_events| {
        let fields = answer.headers();
        let field = |name| fields.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
        let sent = initial_events == InitialEvents::Sent;
        let framing = Framing::new(field(CONTENT_TYPE), field(CONTENT_ENCODING), sent);
        WatchEnd::new(framing, client.shared.freshness.clone(), client.link.moved().clone())
    });
    answer.map(|body| AnswerBody::upstream(body, end, exchange))
}

/// Whether a watch sends the existing objects first. Such a watch only ends early after a mark that
/// they are complete, which only a WatchList has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InitialEvents {
    Sent,
    NotSent,
}

fn watch_of(info: &RequestInfo, uri: &Uri) -> Option<InitialEvents> {
    if info.verb != "watch" {
        return None;
    }
    let asks = query_values(uri, "sendInitialEvents").any(|value| matches!(value, "true" | "1"));
    let version = query_values(uri, "resourceVersion").last().unwrap_or_default();
    Some(if asks || matches!(version, "" | "0") {
        InitialEvents::Sent
    } else {
        InitialEvents::NotSent
    })
}

fn own_answer(error: SendError) -> Response<AnswerBody> {
    match error {
        // The request was not executed, so the client may send it again.
        SendError::NoServer(error) => {
            let message = format!("kube-gateway: no API server can be reached: {error:#}");
            answer::status(StatusCode::SERVICE_UNAVAILABLE, &message, Some(1))
        }
        SendError::Broken(error) => {
            let message = format!(
                "kube-gateway: the connection to the API server ended; the request may have been executed: {error}"
            );
            answer::status(StatusCode::BAD_GATEWAY, &message, None)
        }
    }
}
