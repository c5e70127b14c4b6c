//! What happens to a request before it is forwarded, whatever its HTTP version: it is judged, and
//! turned into one for an API server.

use std::sync::Arc;
use std::time::Instant;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};

use super::answer;
use super::fields::remove_hop_by_hop;
use super::shared::Shared;
use crate::identity::{Credential, Peer};
use crate::protect::{List, Principal, Refused};
use crate::request_info::RequestInfo;
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
    /// The number of the thread that serves it.
    pub worker: usize,
    /// What all connections share.
    pub shared: Arc<Shared>,
}

/// Why a request has no answer of an API server.
pub enum SendError {
    /// No API server was reached; the request was not sent.
    NoServer(anyhow::Error),
    /// The connection ended after the request was sent, which may have been executed.
    Broken(anyhow::Error),
    /// Too many LISTs are in progress; the request was not sent.
    Refused(Refused),
}

/// Checks what can be refused without an API server.
pub fn admit<B>(
    client: &Client,
    request: &Request<B>,
    info: &RequestInfo,
) -> Result<Credential, Box<Response<String>>> {
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

/// The LIST that the request is, if it is one that is limited.
pub fn list_of<B>(
    client: &Client,
    request: &Request<B>,
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
fn check_framing(fields: &HeaderMap) -> Result<(), Box<Response<String>>> {
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

/// Who speaks for the sender of a request.
pub fn speaker(credential: &Credential) -> Speaker {
    match credential {
        Credential::Certificate(_) => Speaker::FrontProxy,
        Credential::Request | Credential::Rejected => Speaker::Client,
    }
}

/// Turns the head of a client's request into one for an API server. The order matters: what the
/// client's `Connection` names goes first, then its claims, and only then the gateway's own fields
/// are added.
pub fn prepare(client: &Client, parts: &mut Parts, credential: &Credential) {
    let fields = &mut parts.headers;
    remove_hop_by_hop(fields);
    client.shared.names.remove_claims(fields);
    fields.insert(X_FORWARDED_FOR, client.address.clone());
    if let Credential::Certificate(identity) = credential {
        identity.add_to(fields);
    }
    parts.uri = upstream_uri(parts.version, std::mem::take(&mut parts.uri), fields);
}

/// HTTP/2 needs the authority in the URI, and HTTP/1.1 in the field `Host`.
fn upstream_uri(version: Version, uri: Uri, fields: &mut HeaderMap) -> Uri {
    let mut parts = uri.into_parts();
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
    // The parts are those of a valid URI, so this cannot fail.
    Uri::from_parts(parts).unwrap_or_default()
}

/// The answer of the gateway in place of that of an API server.
pub fn own_answer(error: SendError) -> Response<String> {
    match error {
        // The request was not executed, so the client may send it again.
        SendError::NoServer(error) => {
            let message = format!("kube-gateway: no API server can be reached: {error:#}");
            answer::status(StatusCode::SERVICE_UNAVAILABLE, &message, Some(1))
        }
        SendError::Broken(error) => {
            let message = format!(
                "kube-gateway: the connection to the API server ended; the request may have been executed: {error:#}"
            );
            answer::status(StatusCode::BAD_GATEWAY, &message, None)
        }
        SendError::Refused(refused) => {
            let message = "kube-gateway: too many large lists in progress, please try again later";
            answer::status(StatusCode::TOO_MANY_REQUESTS, message, Some(refused.retry_after))
        }
    }
}
