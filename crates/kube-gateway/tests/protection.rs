//! Limits of the gateway, with API servers that answer slowly, break off and die.

#[expect(dead_code, reason = "other tests use the rest")]
mod fake;

use std::time::Duration;

use fake::{ApiServer, Asked, Client, Gateway, Pki};
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::task::JoinHandle;

const LIMIT: &str = "lists: {maxBytes: 1Mi, maxWaiting: 2, maxWait: 60s}";
const PODS: &str = "/api/v1/pods";

/// Sends a LIST, and reads its answer to the end.
fn list(client: &Client, url: &'static str, agent: &'static str) -> JoinHandle<StatusCode> {
    let client = client.clone();
    tokio::spawn(async move { client.complete(url, agent).await.0 })
}

/// Writes more than the limit, and waits until the gateway knows.
async fn exceed(gateway: &Gateway, asked: &Asked) {
    asked.write(3 << 19).await;
    gateway
        .until("the reservation grows", async || {
            gateway.metric("kube_gateway_list_reserved_bytes").await > f64::from(1 << 20)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_waits_for_one_that_is_larger_than_predicted() {
    let pki = Pki::new();
    let mut server = ApiServer::start(&pki).await;
    let gateway = Gateway::start(&pki, &[&server], LIMIT).await;
    let client = Client::connect(&pki, &gateway).await;
    let first = list(&client, PODS, "a");
    let asked = server.next().await;
    // An unknown LIST takes a quarter of the limit; this one turns out to be larger than all of it.
    assert_eq!(gateway.metric("kube_gateway_list_reserved_bytes").await, f64::from(1 << 18));
    exceed(&gateway, &asked).await;
    let second = list(&client, PODS, "a");
    server.nothing().await;
    // Objects by name, and LISTs of one node, do not wait.
    assert_eq!(client.complete("/api/v1/namespaces/a/pods/b", "a").await.0, StatusCode::OK);
    let node = list(&client, "/api/v1/pods?fieldSelector=spec.nodeName%3Da", "a");
    assert!(server.next().await.url.contains("nodeName"));
    assert_eq!(node.await.unwrap(), StatusCode::OK);
    drop(asked);
    assert_eq!(first.await.unwrap(), StatusCode::OK);
    drop(server.next().await);
    assert_eq!(second.await.unwrap(), StatusCode::OK);
    gateway
        .until("everything is returned", async || {
            gateway.metric("kube_gateway_list_reserved_bytes").await == 0.0
                && gateway.metric("kube_gateway_lists_running").await == 0.0
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_a_list_returns_its_bytes() {
    let pki = Pki::new();
    let mut server = ApiServer::start(&pki).await;
    let gateway = Gateway::start(&pki, &[&server], LIMIT).await;
    let client = Client::connect(&pki, &gateway).await;
    let large = async |server: &mut ApiServer, client: &Client| {
        let answer = client.get(PODS, "a");
        let (answer, asked) = tokio::join!(answer, server.next());
        exceed(&gateway, &asked).await;
        (answer, asked)
    };
    // The API server breaks the answer off.
    let (answer, asked) = large(&mut server, &client).await;
    let second = list(&client, PODS, "a");
    let read = tokio::spawn(answer.into_body().collect());
    server.nothing().await;
    asked.break_off().await;
    assert!(read.await.unwrap().is_err());
    drop(server.next().await);
    assert_eq!(second.await.unwrap(), StatusCode::OK);
    // The client leaves in the middle.
    let (answer, _asked) = large(&mut server, &client).await;
    let second = list(&client, PODS, "a");
    server.nothing().await;
    drop(answer);
    drop(server.next().await);
    assert_eq!(second.await.unwrap(), StatusCode::OK);
    // A client that waits leaves.
    let (_answer, asked) = large(&mut server, &client).await;
    let other = Client::connect(&pki, &gateway).await;
    let waits = list(&other, PODS, "b");
    gateway
        .until("one waits", async || gateway.metric("kube_gateway_lists_waiting").await == 1.0)
        .await;
    waits.abort();
    gateway
        .until("nobody waits", async || gateway.metric("kube_gateway_lists_waiting").await == 0.0)
        .await;
    drop(asked);
    server.nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_cannot_wait_gets_429() {
    let pki = Pki::new();
    let mut server = ApiServer::start(&pki).await;
    let gateway = Gateway::start(&pki, &[&server], &LIMIT.replace("60s", "1s")).await;
    let client = Client::connect(&pki, &gateway).await;
    let first = list(&client, PODS, "a");
    let asked = server.next().await;
    exceed(&gateway, &asked).await;
    let waiting = [list(&client, PODS, "a"), list(&client, PODS, "b")];
    gateway
        .until("two wait", async || gateway.metric("kube_gateway_lists_waiting").await == 2.0)
        .await;
    let (code, fields, body) = client.complete(PODS, "c").await;
    assert_eq!(code, StatusCode::TOO_MANY_REQUESTS);
    let seconds: u32 = fields["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds));
    let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["reason"], "TooManyRequests");
    assert_eq!(status["details"]["retryAfterSeconds"], seconds);
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), StatusCode::TOO_MANY_REQUESTS, "after a second");
    }
    assert_eq!(gateway.metric("kube_gateway_lists_refused_total").await, 3.0);
    drop(asked);
    assert_eq!(first.await.unwrap(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_waits_for_a_dead_api_server_goes_to_another_one() {
    let pki = Pki::new();
    let mut servers = [ApiServer::start(&pki).await, ApiServer::start(&pki).await];
    let gateway = Gateway::start(&pki, &[&servers[0], &servers[1]], LIMIT).await;
    let client = Client::connect(&pki, &gateway).await;
    let first = client.get(PODS, "a");
    let [one, two] = &mut servers;
    let asked = async {
        tokio::select! { asked = one.next() => (asked, 0), asked = two.next() => (asked, 1) }
    };
    let (answer, (asked, place)) = tokio::join!(first, asked);
    exceed(&gateway, &asked).await;
    let read = tokio::spawn(answer.into_body().collect());
    let second = list(&client, PODS, "a");
    gateway
        .until("one waits", async || gateway.metric("kube_gateway_lists_waiting").await == 1.0)
        .await;
    servers[place].kill();
    assert!(read.await.unwrap().is_err());
    drop(servers[1 - place].next().await);
    assert_eq!(second.await.unwrap(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_bound_on_buffers_slow_readers_are_stopped() {
    let pki = Pki::new();
    let mut server = ApiServer::start(&pki).await;
    let fields = "lists: {maxBytes: 0}\nbuffers: {maxBytes: 16Mi}";
    let gateway = Gateway::start(&pki, &[&server], fields).await;
    let (mut answers, mut writers) = (Vec::new(), Vec::new());
    let readers: u32 = std::env::var("SLOW_READERS").map_or(100, |text| text.parse().unwrap());
    for _ in 0..readers {
        let client = Client::with_window(&pki, &gateway, 64 << 10).await;
        let (answer, asked) = tokio::join!(client.get(PODS, "a"), server.next());
        writers.push(tokio::spawn(async move {
            // Until the end, or until the client leaves.
            for _ in 0..160 {
                if !asked.try_write(128 << 10).await {
                    return;
                }
            }
        }));
        answers.push((answer, client));
    }
    gateway
        .until("connections are stopped", async || {
            gateway.metric("kube_gateway_buffered_stopped_connections").await > 10.0
        })
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let held = gateway.metric("kube_gateway_buffered_bytes").await;
    println!("{readers} readers: {held} bytes held, {} bytes resident", gateway.resident());
    // The bound, and for each client its smallest share and one read.
    let most = f64::from(16 << 20) + f64::from(readers) * f64::from(64 << 10);
    assert!((1e7..most).contains(&held), "{held}");
    // A new client gets through, and slow ones get their answers when they read.
    let client = Client::connect(&pki, &gateway).await;
    let quick = list(&client, PODS, "b");
    let asked = server.next().await;
    asked.write(1 << 20).await;
    drop(asked);
    assert_eq!(quick.await.unwrap(), StatusCode::OK);
    let cancelled = answers.split_off(5);
    drop(cancelled);
    for (answer, _client) in answers {
        let read = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(read.len(), 20 << 20);
    }
    gateway
        .until("nothing is held", async || {
            gateway.metric("kube_gateway_buffered_bytes").await == 0.0
                && gateway.metric("kube_gateway_buffered_stopped_connections").await == 0.0
        })
        .await;
}
