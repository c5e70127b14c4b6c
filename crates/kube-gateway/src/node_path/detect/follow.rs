//! Follows the objects of one kind by a watch, and confirms them by consistent lists.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;

use super::admission::Kind;
use super::shared::Shared;
use super::track::{Change, List, MAX_AGE};
use crate::node_path::client::{Ask, Busy, Client, status_error};

/// Time between two consistent lists. The API server asks the store for its revision and waits until
/// its own cache has it, so that a list shows whether the watch lies behind.
const LIST_PERIOD: Duration = Duration::from_secs(2);
/// Time after which a list that was not answered is followed by another one. What is known stays young enough as long
/// as answers take less than [`MAX_AGE`] without this time.
const LATE_PERIOD: Duration = Duration::from_secs(1);
/// Time between two attempts, and between two watches.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Bytes of an incomplete event. The store accepts objects of 1.5 MB.
const MAX_EVENT: usize = 8 << 20;

/// Follows the objects of a kind until the process ends, at one ready API server after the other.
pub async fn follow_forever(shared: &Shared, kind: Kind) {
    let mut attempt = 0;
    loop {
        let servers = shared.ready_servers();
        let ended = match servers.get(attempt % servers.len().max(1)) {
            Some(server) => follow(shared, kind, server).await,
            None => Err(anyhow::anyhow!("no API server is ready")),
        };
        let error = match &ended {
            Ok(()) => "the watch ended".to_owned(),
            Err(error) => {
                attempt += 1;
                format!("{error:#}")
            }
        };
        shared.change(|knowledge| knowledge.track(kind).interrupted(Instant::now(), error));
        if ended.is_err() {
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// Follows the objects of a kind over one connection to an API server, until it ends. Kubernetes ends each watch from
/// time to time.
async fn follow(shared: &Shared, kind: Kind, server: &str) -> Result<()> {
    let unwatched = || shared.change(|it| it.track(kind).unwatched(Instant::now()));
    unwatched();
    let client = shared.dialer.connect(server).await.with_context(|| server.to_owned())?;
    loop {
        follow_watch(shared, kind, &client).await.with_context(|| server.to_owned())?;
        unwatched();
        if client.has_ended() {
            return Ok(());
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Follows the objects of a kind until one watch ends.
async fn follow_watch(shared: &Shared, kind: Kind, client: &Client) -> Result<()> {
    let Some(version) = list(shared, kind, client).await? else {
        return poll_absent(shared, kind, client).await;
    };
    let path =
        format!("{}watch=true&allowWatchBookmarks=true&resourceVersion={version}", kind.path());
    let body = client.watch(Ask::get(&path)).await?;
    let mut events = Events { body, buffer: BytesMut::new() };
    shared.change(|knowledge| knowledge.track(kind).watching());
    tokio::select! {
        ended = watch(shared, kind, &mut events) => ended,
        failed = list_forever(shared, kind, client) => failed,
        () = client.ended() => Ok(()),
    }
}

async fn watch(shared: &Shared, kind: Kind, events: &mut Events) -> Result<()> {
    while let Some(event) = events.next().await? {
        if let Some(change) = change(&event)? {
            shared.change(|knowledge| knowledge.track(kind).changed(change));
        }
    }
    Ok(())
}

/// Lists the objects from time to time. A busy API server answers late or not at all, while its watch goes on. Returns
/// if there was no answer for [`MAX_AGE`], so that another API server is asked.
async fn list_forever(shared: &Shared, kind: Kind, client: &Client) -> Result<()> {
    type Listed = Result<Option<u64>>;
    let mut lists = FuturesUnordered::new();
    let (mut answered, mut next) = (Instant::now(), Instant::now() + LIST_PERIOD);
    let mut busy = None;
    loop {
        tokio::select! {
            Some((started, listed)) = lists.next() => match listed as Listed {
                Ok(Some(_)) => {
                    (answered, busy) = (Instant::now(), None);
                    next = next.max(started + LIST_PERIOD);
                }
                Ok(None) => bail!("the kind is no longer served"),
                Err(error) if error.is::<Busy>() => {
                    shared.change(|it| it.track(kind).not_listed(format!("{error:#}")));
                    busy = Some(error);
                }
                Err(error) => return Err(error),
            },
            () = tokio::time::sleep_until(next.into()) => {
                if answered.elapsed() > MAX_AGE {
                    return Err(busy.unwrap_or_else(|| anyhow::anyhow!("no list is answered")));
                }
                let started = Instant::now();
                lists.push(list(shared, kind, client).map(move |listed| (started, listed)));
                next = started + LATE_PERIOD;
            }
        }
    }
}

/// Asks from time to time for a kind that the API server does not serve. Returns when it does.
async fn poll_absent(shared: &Shared, kind: Kind, client: &Client) -> Result<()> {
    loop {
        shared.change(|knowledge| knowledge.track(kind).watching());
        tokio::time::sleep(LIST_PERIOD / 10).await;
        if list(shared, kind, client).await?.is_some() {
            return Ok(());
        }
    }
}

/// Lists the objects as the store has them now. Returns the version of the list; `None` if the API
/// server does not serve the kind, so that there are no objects.
async fn list(shared: &Shared, kind: Kind, client: &Client) -> Result<Option<u64>> {
    let started = Instant::now();
    let (code, body) = client.send(Ask::get(kind.path())).await?;
    let list = match code {
        StatusCode::OK => parse_list(&body)?,
        StatusCode::NOT_FOUND if kind != Kind::Namespace => List { version: 0, objects: vec![] },
        code => return Err(status_error(kind.path(), code)),
    };
    let version = list.version;
    shared.change(|knowledge| knowledge.track(kind).listed(list, started));
    Ok((code == StatusCode::OK).then_some(version))
}

fn parse_list(body: &[u8]) -> Result<List> {
    let mut list: Value = serde_json::from_slice(body).context("parse a list")?;
    let version = version(&list)?;
    let more = list["metadata"]["continue"].as_str().unwrap_or_default();
    ensure!(more.is_empty(), "the list is not complete");
    let items = match list["items"].take() {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        _ => bail!("the list has no items"),
    };
    let named = |item: Value| Ok((name(&item)?, trimmed(item)));
    let objects = items.into_iter().map(named).collect::<Result<Vec<_>>>()?;
    Ok(List { version, objects })
}

/// Reads an event of a watch; `None` for a bookmark.
fn change(event: &[u8]) -> Result<Option<Change>> {
    let mut event: Value = serde_json::from_slice(event).context("parse an event")?;
    let object = event["object"].take();
    let exists = match event["type"].as_str().unwrap_or_default() {
        "ADDED" | "MODIFIED" => true,
        "DELETED" => false,
        "BOOKMARK" => return Ok(None),
        other => bail!("the watch got {other}: {}", object["message"].as_str().unwrap_or("?")),
    };
    let (name, version) = (name(&object)?, version(&object)?);
    Ok(Some(Change { name, version, object: exists.then(|| trimmed(object)) }))
}

fn name(object: &Value) -> Result<String> {
    Ok(object["metadata"]["name"].as_str().context("an object has no name")?.to_owned())
}

/// Reads a resourceVersion. Since Kubernetes 1.35 their order is part of the API.
fn version(object: &Value) -> Result<u64> {
    let text = object["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?;
    text.parse().with_context(|| format!("the resourceVersion {text:?}"))
}

/// Removes what is large and not needed.
fn trimmed(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| matches!(field.as_str(), "labels" | "deletionTimestamp"));
    }
    for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
        if let Some(webhook) = webhook.as_object_mut() {
            webhook.remove("clientConfig");
        }
    }
    object
}

/// The events of a watch, one a line.
struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// Waits for the next event; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let mut searched = 0;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[searched..]) {
                let line = self.buffer.split_to(searched + at + 1).freeze();
                return Ok(Some(line));
            }
            searched = self.buffer.len();
            ensure!(searched <= MAX_EVENT, "an event is larger than 8 MiB");
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_events_are_read() {
        let list = br#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a",
            "managedFields":[1],"labels":{"l":"v"}},"webhooks":[{"name":"w","clientConfig":{}}]}]}"#;
        let list = parse_list(list).unwrap();
        assert_eq!((list.version, list.objects.len()), (7, 1));
        let (name, object) = &list.objects[0];
        let expected =
            serde_json::json!({"metadata": {"labels": {"l": "v"}}, "webhooks": [{"name": "w"}]});
        assert_eq!((name.as_str(), object), ("a", &expected));
        let event = |kind: &str| {
            let text = format!(
                r#"{{"type":"{kind}","object":{{"message":"too old","metadata":{{"name":"a","resourceVersion":"9"}}}}}}"#
            );
            change(text.as_bytes())
        };
        assert!(event("ADDED").unwrap().unwrap().object.is_some());
        let deleted = event("DELETED").unwrap().unwrap();
        assert!(deleted.object.is_none() && deleted.version == 9);
        assert!(event("BOOKMARK").unwrap().is_none());
        assert_eq!(event("ERROR").unwrap_err().to_string(), "the watch got ERROR: too old");
        let partial = br#"{"metadata":{"resourceVersion":"7","continue":"x"},"items":[]}"#;
        assert!(parse_list(partial).is_err());
    }
}
