//! Forwards one request.

use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::body::{AnswerBody, Upstream};
use super::early_end::EarlyEnd;
use super::link::{Link, Sent};
use super::request_body::RequestBody;
use super::upgrade::{self, Upgrade};
use crate::exchange::Exchange;
use crate::forward::fields::remove_hop_by_hop;
use crate::forward::followed::{Content, Followed, InitialEvents, watch_of};
use crate::forward::request::{Client, admit, list_of, own_answer, prepare, speaker};
use crate::identity::Credential;
use crate::protect::HeldBody;
use crate::request_info::RequestInfo;

/// A client of HTTP/1.1.
pub struct Http1Client {
    /// The client.
    pub client: Client,
    /// Its connection to an API server.
    pub link: Link,
}

/// Forwards a request and returns its answer. It is an answer of the gateway if no API server gave
/// one.
pub async fn forward(
    connection: Arc<Http1Client>,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let Http1Client { client, link } = &*connection;
    let info = RequestInfo::new(request.method(), request.uri());
    let watch = watch_of(&info, request.uri());
    let metrics = client.shared.metrics.clone();
    let mut exchange = Exchange::new(&request, info, client.shared.sample(), metrics);
    let own = match admit(client, &request, exchange.info()) {
        Err(refusal) => *refusal,
        Ok(credential) => {
            let list = list_of(client, &request, exchange.info(), &credential);
            if let Some(leases) = &client.shared.leases {
                leases.note_http1(exchange.info());
            }
            let (upstream, upgrade) = prepare_upstream(client, request, &credential);
            match link.send(upstream, speaker(&credential), list, &mut exchange).await {
                Ok(sent) => return finish(&connection, sent, upgrade, watch, exchange),
                Err(error) => own_answer(error),
            }
        }
    };
    exchange.answered_by_gateway(own.status());
    own.map(|text| AnswerBody::own(text).with_exchange(exchange))
}

fn prepare_upstream(
    client: &Client,
    mut request: Request<Incoming>,
    credential: &Credential,
) -> (Request<RequestBody>, Option<Upgrade>) {
    let upgrade = Upgrade::of(&mut request);
    let (mut parts, body) = request.into_parts();
    prepare(client, &mut parts, credential);
    if let Some(upgrade) = &upgrade {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        parts.headers.insert(UPGRADE, upgrade.protocol.clone());
    }
    (Request::from_parts(parts, RequestBody::new(body)), upgrade)
}

/// Passes the answer of an API server on.
fn finish(
    connection: &Http1Client,
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
    let (shared, status, fields) = (&connection.client.shared, answer.status(), answer.headers());
    let field = |name| fields.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
    let content = || Content { media_type: field(CONTENT_TYPE), encoding: field(CONTENT_ENCODING) };
    let followed = Followed::new(shared, status, content, reservation, watch);
    let early_end =
        followed.watch().is_some().then(|| EarlyEnd::new(connection.link.moved().clone()));
    answer.map(|body| {
        let held = HeldBody::new(held);
        AnswerBody::upstream(Upstream { body, held, followed, early_end }, exchange)
    })
}
