//! Renewals of Leases that the gateway forwards, with API servers that do not answer.

#[expect(dead_code, reason = "other tests use the rest")]
mod fake;

use fake::{ApiServer, Asked, Client, Gateway, Pki};
use http::StatusCode;
use tokio::task::JoinHandle;

/// Renewals at an API server at a time.
const MAX_RUNNING: usize = 256;
/// Renewals that a client sends at a time.
const EACH: usize = 50;
/// Clients that send more renewals together than an API server gets.
const CLIENTS: usize = MAX_RUNNING / EACH + 1;
/// Renewals of all clients that wait.
const WAITING: usize = CLIENTS * EACH - MAX_RUNNING;
/// Nothing is served, as there is no store.
const SHADOW: &str =
    "nodePath: {store: {endpoints: ['http://127.0.0.1:1']}, leases: {mode: shadow}}";

/// The status of the answer, if it is complete.
type Renewal = JoinHandle<Option<StatusCode>>;

/// Connects the clients, which send their renewals.
async fn renew_all(pki: &Pki, gateway: &Gateway) -> Vec<(Client, Vec<Renewal>)> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let client = Client::kubelet(pki, gateway).await;
        let renew = |_| {
            let client = client.clone();
            tokio::spawn(async move { client.renew().await })
        };
        let renewals = (0..EACH).map(renew).collect();
        clients.push((client, renewals));
    }
    clients
}

/// Takes the renewals that arrive at an API server, and checks that no more do.
async fn full(server: &mut ApiServer, gateway: &Gateway) -> Vec<Asked> {
    let mut asked = Vec::new();
    for _ in 0..MAX_RUNNING {
        asked.push(server.next().await);
    }
    until_waiting(gateway, WAITING).await;
    server.nothing().await;
    let running = gateway.metric("kube_gateway_node_path_lease_renewals_running{").await;
    assert_eq!(running, MAX_RUNNING as f64);
    asked
}

/// Answers all that arrives.
async fn answer(server: &mut ApiServer) -> ! {
    loop {
        drop(server.next().await);
    }
}

async fn until_waiting(gateway: &Gateway, count: usize) {
    gateway
        .until("renewals wait", async || {
            gateway.metric("kube_gateway_node_path_lease_renewals_waiting ").await == count as f64
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_wait_for_their_turn_and_leave() {
    let pki = Pki::new();
    let mut server = ApiServer::start(&pki).await;
    let gateway = Gateway::start(&pki, &[&server], SHADOW).await;
    let mut clients = renew_all(&pki, &gateway).await;
    let mut asked = full(&mut server, &gateway).await;
    // Other requests do not wait.
    let url = "/api/v1/namespaces/a/pods/b";
    assert_eq!(clients[0].0.complete(url, "a").await.0, StatusCode::OK);
    // The turn of one that is answered is that of another one.
    asked.pop();
    asked.push(server.next().await);
    server.nothing().await;
    until_waiting(&gateway, WAITING - 1).await;
    // A client goes, with what it has at the API server, and what waits.
    let (client, renewals) = clients.pop().unwrap();
    renewals.iter().for_each(JoinHandle::abort);
    drop((client, renewals));
    until_waiting(&gateway, 0).await;
    // All others are answered.
    drop(asked);
    let statuses = async {
        for renewal in clients.into_iter().flat_map(|(_, renewals)| renewals) {
            assert_eq!(renewal.await.unwrap(), Some(StatusCode::OK));
        }
    };
    tokio::select! {
        () = statuses => {}
        never = answer(&mut server) => never,
    }
    gateway
        .until("nothing is left", async || {
            gateway.metric("kube_gateway_node_path_lease_renewals_running{").await == 0.0
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_wait_go_to_another_server_when_theirs_dies() {
    let pki = Pki::new();
    let mut first = ApiServer::start(&pki).await;
    let gateway = Gateway::start(&pki, &[&first], SHADOW).await;
    let clients = renew_all(&pki, &gateway).await;
    let _asked = full(&mut first, &gateway).await;
    let mut second = ApiServer::start(&pki).await;
    gateway.reload(&pki, &[&first, &second], SHADOW).await;
    first.kill();
    let mut statuses = Vec::new();
    let all = async {
        for renewal in clients.into_iter().flat_map(|(_, renewals)| renewals) {
            statuses.push(renewal.await.unwrap());
        }
    };
    tokio::select! {
        () = all => {}
        never = answer(&mut second) => never,
    }
    // Of those that were sent, nobody knows whether they were executed. Some of the others may have been sent over a
    // connection whose end was not known yet.
    let lost = |status: &&Option<StatusCode>| status.is_none_or(|it| it == StatusCode::BAD_GATEWAY);
    let lost = statuses.iter().filter(lost).count();
    let served = statuses.iter().filter(|status| **status == Some(StatusCode::OK)).count();
    assert!(lost >= MAX_RUNNING && lost + served == statuses.len(), "{statuses:?}");
    // What comes later is served.
    until_waiting(&gateway, 0).await;
    let client = Client::kubelet(&pki, &gateway).await;
    let (status, asked) = tokio::join!(client.renew(), async { drop(second.next().await) });
    assert_eq!((status, asked), (Some(StatusCode::OK), ()));
}
