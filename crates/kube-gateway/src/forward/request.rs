//! Forwards one request.

use std::sync::Arc;
use std::time::Instant;

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;

use super::answer;
use super::body::{AnswerBody, Upstream};
use super::fields::remove_hop_by_hop;
use super::framing::Framing;
use super::link::{Link, SendError, Sent};
use super::list::ListAnswer;
use super::request_body::RequestBody;
use super::shared::Shared;
use super::upgrade::{self, Upgrade};
use super::watch::WatchEnd;
use crate::exchange::Exchange;
use crate::identity::{Credential, Peer};
use crate::protect::{HeldBody, List, Principal};
use crate::request_info::{RequestInfo, query_flag, query_values};
use crate::upstream::Speaker;

/// From which client a request came. kube-apiserver writes it into audit events.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The user for whom a request is sent, if it is not the sender.
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
/// Seconds after which a client that was throttled may come again, at most.
const MAX_RETRY_AFTER: u32 = 60;

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
    let own = match admit(&client, &request, exchange.info()) {
        Err(refusal) => *refusal,
        Ok(credential) => {
            let list = list_of(&client, &request, exchange.info(), &credential);
            let (upstream, upgrade) = prepare(&client, request, &credential);
            match client.link.send(upstream, speaker(&credential), list, &mut exchange).await {
                Ok(sent) => return finish(&client, sent, upgrade, watch, exchange),
                Err(error) => own_answer(error),
            }
        }
    };
    exchange.answered_by_gateway(own.status());
    own.map(|body| body.with_exchange(exchange))
}

/// Checks what can be refused without an API server.
fn admit(
    client: &Client,
    request: &Request<Incoming>,
    info: &RequestInfo,
) -> Result<Credential, Box<Response<AnswerBody>>> {
    if request.method() == Method::CONNECT {
        let message = "kube-gateway: the method CONNECT is not supported";
        return Err(answer::status(StatusCode::METHOD_NOT_ALLOWED, message, None).into());
    }
    let fields = request.headers();
    check_framing(fields)?;
    let credential = match client.peer.credential(fields) {
        Credential::Rejected => {
            return Err(answer::status(StatusCode::UNAUTHORIZED, "Unauthorized", None).into());
        }
        credential => credential,
    };
    let throttle = &client.shared.protection.throttle;
    if !throttle.is_empty()
        && !is_master(&credential, fields)
        && let Err(wait) = throttle.check(info, fields, Instant::now())
    {
        client.shared.metrics.throttled();
        let message = "kube-gateway: too many requests of this User-Agent, please try again later";
        let seconds = (wait.as_secs_f64().ceil() as u32).clamp(1, MAX_RETRY_AFTER);
        let refusal = answer::status(StatusCode::TOO_MANY_REQUESTS, message, Some(seconds));
        return Err(refusal.into());
    }
    Ok(credential)
}

/// Whether a user in `system:masters` sends a request for itself.
fn is_master(credential: &Credential, fields: &HeaderMap) -> bool {
    match credential {
        Credential::Certificate(identity) => {
            identity.is_master() && !fields.contains_key(IMPERSONATE_USER)
        }
        Credential::Request | Credential::Rejected => false,
    }
}

fn list_of(
    client: &Client,
    request: &Request<Incoming>,
    info: &RequestInfo,
    credential: &Credential,
) -> Option<List> {
    let principal = match credential {
        Credential::Certificate(identity) => Principal::User(identity.user()),
        Credential::Request | Credential::Rejected => Principal::Address(client.address.as_bytes()),
    };
    let fields = request.headers();
    let privileged = is_master(credential, fields);
    let lists = &client.shared.protection.lists;
    lists.list_of(info, request.method(), request.uri(), fields, principal, privileged)
}

/// Refuses what kube-apiserver refuses before it looks at the request, and what would be lost because
/// these fields end at the gateway: codings of the body besides chunks, and several hosts.
fn check_framing(fields: &HeaderMap) -> Result<(), Box<Response<AnswerBody>>> {
    let mut codings = fields.get_all(TRANSFER_ENCODING).iter();
    let only_chunks = codings.next().is_none_or(|coding| {
        coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") && codings.next().is_none()
    });
    if !only_chunks {
        let message = "kube-gateway: unsupported transfer encoding";
        return Err(answer::status(StatusCode::NOT_IMPLEMENTED, message, None).into());
    }
    if fields.get_all(HOST).iter().nth(1).is_some() {
        let message = "kube-gateway: the request has several fields Host";
        return Err(answer::status(StatusCode::BAD_REQUEST, message, None).into());
    }
    Ok(())
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
    sent: Sent,
    upgrade: Option<Upgrade>,
    watch: Option<InitialEvents>,
    mut exchange: Exchange,
) -> Response<AnswerBody> {
    let Sent { mut answer, reservation, held } = sent;
    exchange.answered(answer.status());
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        held.becomes_tunnel();
        return upgrade::switch(upgrade, answer, exchange);
    }
    remove_hop_by_hop(answer.headers_mut());
    let fields = answer.headers();
    let field = |name| fields.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
    let content_encoding = field(CONTENT_ENCODING);
    // An error is small, whatever was predicted.
    let mut reservation = reservation.filter(|_| answer.status() == StatusCode::OK);
    let watch = watch.filter(|_| answer.status() == StatusCode::OK).map(|initial_events| {
        let sent = initial_events == InitialEvents::Sent;
        let framing = Framing::new(field(CONTENT_TYPE), content_encoding, sent);
        let (freshness, moved) = (client.shared.freshness.clone(), client.link.moved().clone());
        Box::new(WatchEnd::new(framing, reservation.take(), freshness, moved))
    });
    let list = reservation.map(|reservation| ListAnswer::new(content_encoding, reservation));
    answer.map(|body| {
        let held = HeldBody::new(held);
        AnswerBody::upstream(Upstream { body, held, list, watch }, exchange)
    })
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
    let version = query_values(uri, "resourceVersion").next().unwrap_or_default();
    Some(if query_flag(uri, "sendInitialEvents") || matches!(&*version, "" | "0") {
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
        SendError::Refused(refused) => {
            let message = "kube-gateway: too many large lists in progress, please try again later";
            answer::status(StatusCode::TOO_MANY_REQUESTS, message, Some(refused.retry_after))
        }
    }
}
