//! Watches whose API server is lost before the first event.

#[expect(dead_code, reason = "other tests use the rest")]
mod fake;

use std::time::Duration;

use bytes::Bytes;
use fake::{ApiServer, Asked, Client, Gateway, Pki};
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

const WATCH: &str = "/api/v1/pods?watch=true&resourceVersion=5";
const EVENT: usize = 100;

/// API servers behind a gateway, and a client.
struct Scene {
    servers: Vec<ApiServer>,
    client: Client,
    _gateway: Gateway,
    _pki: Pki,
}

impl Scene {
    async fn with(types: &[&'static str]) -> Scene {
        let pki = Pki::new();
        let mut servers = Vec::new();
        for content_type in types {
            servers.push(ApiServer::with_type(&pki, content_type).await);
        }
        let gateway = Gateway::start(&pki, &servers.iter().collect::<Vec<_>>(), "").await;
        let client = Client::connect(&pki, &gateway).await;
        Scene { servers, client, _gateway: gateway, _pki: pki }
    }

    /// Starts a watch. Returns its head, what its API server got, and the number of that server.
    async fn watch(&mut self, url: &str) -> (Response<Incoming>, Asked, usize) {
        let client = self.client.clone();
        let (answer, (asked, server)) = tokio::join!(client.get(url, "a"), self.next());
        assert_eq!(answer.status(), StatusCode::OK);
        (answer, asked, server)
    }

    /// The next request that any API server gets, and the number of that server.
    async fn next(&mut self) -> (Asked, usize) {
        let next = self.servers.iter_mut().map(|server| server.next().boxed());
        let (asked, server, _) = select_all(next).await;
        (asked, server)
    }

    async fn nothing(&mut self) {
        for server in &mut self.servers {
            server.nothing().await;
        }
    }
}

/// Reads one event.
async fn event(answer: &mut Response<Incoming>) {
    let frame = tokio::time::timeout(Duration::from_secs(120), answer.body_mut().frame());
    let frame = frame.await.expect("an event arrives").unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap().len(), EVENT);
}

/// Reads a watch to its end, which is the end of its stream and no reset.
async fn read(answer: Response<Incoming>) -> Bytes {
    let body = tokio::time::timeout(Duration::from_secs(120), answer.into_body().collect());
    body.await.expect("the watch ends").expect("the watch ends well").to_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_without_an_event_goes_on_at_another_api_server() {
    for url in
        [WATCH, "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"]
    {
        let mut scene = Scene::with(&["application/json"; 2]).await;
        let (answer, asked, first) = scene.watch(url).await;
        assert_eq!(asked.url, url);
        scene.servers[first].kill();
        let (asked, second) = scene.next().await;
        assert_eq!((asked.url.as_str(), second), (url, 1 - first));
        asked.write(EVENT).await;
        drop(asked);
        assert_eq!(read(answer).await.len(), EVENT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_without_an_event_goes_on_after_a_reset() {
    let mut scene = Scene::with(&["application/json"]).await;
    let (mut answer, asked, _) = scene.watch(WATCH).await;
    asked.break_off().await;
    let (asked, _) = scene.next().await;
    asked.write(EVENT).await;
    event(&mut answer).await;
    // The next reset ends it.
    asked.break_off().await;
    assert!(read(answer).await.is_empty());
    scene.nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_once() {
    let mut scene = Scene::with(&["application/json"; 3]).await;
    let (answer, _asked, first) = scene.watch(WATCH).await;
    scene.servers[first].kill();
    let (_asked, second) = scene.next().await;
    // The head of the second answer has passed, and not only its request.
    tokio::time::sleep(Duration::from_millis(200)).await;
    scene.servers[second].kill();
    assert!(read(answer).await.is_empty());
    scene.nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_with_an_event_ends() {
    let mut scene = Scene::with(&["application/json"; 2]).await;
    let (mut answer, asked, first) = scene.watch(WATCH).await;
    asked.write(EVENT).await;
    event(&mut answer).await;
    scene.servers[first].kill();
    assert!(read(answer).await.is_empty());
    scene.nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_older_ends() {
    let mut scene = Scene::with(&["application/json"; 2]).await;
    let (answer, _asked, first) = scene.watch(WATCH).await;
    // Silent connections keep no requests.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    scene.servers[first].kill();
    assert!(read(answer).await.is_empty());
    scene.nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_if_no_other_answer_fits() {
    // No API server is left.
    let mut scene = Scene::with(&["application/json"]).await;
    let (answer, _asked, first) = scene.watch(WATCH).await;
    scene.servers[first].kill();
    assert!(read(answer).await.is_empty());
    // The other one sends something else.
    let mut scene = Scene::with(&["application/json", "application/yaml"]).await;
    let (answer, _asked, first) = scene.watch(WATCH).await;
    scene.servers[first].kill();
    let (asked, _) = scene.next().await;
    assert!(read(answer).await.is_empty());
    while asked.try_write(EVENT).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let other = scene.client.complete("/healthz", "a").await;
    assert_eq!(other.0, StatusCode::OK, "the connection goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_whose_answer_has_begun_breaks_off() {
    let mut scene = Scene::with(&["application/json"; 2]).await;
    let (answer, _asked, first) = scene.watch("/api/v1/pods").await;
    scene.servers[first].kill();
    assert!(answer.into_body().collect().await.is_err());
    scene.nothing().await;
}
