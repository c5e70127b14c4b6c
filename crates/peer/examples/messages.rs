//! Measures the CPU time of messages between two members, both in this process: of the sender, the
//! receiver and the kernel together.
//!
//! `cargo run --release -p peer --example messages`

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use consensus::entry::{Content, Data, Entry};
use consensus::id::{ClusterId, MemberId, Position};
use consensus::membership::MemberInfo;
use consensus::message::{Body, Message};
use cpu_time::ProcessTime;
use peer::{Config, Event, Listeners, PeerTls, PeerTlsFiles, PeerUrl, Timeouts, Transport};
use rcgen::{CertificateParams, KeyPair};
use tokio::sync::Notify;

const CLUSTER: ClusterId = ClusterId(1);
/// Number of messages of a measurement.
const MESSAGES: u64 = 20_000;

struct Member {
    info: MemberInfo,
    transport: Transport,
    wake: Arc<Notify>,
}

async fn start(number: u64, tls: Option<Arc<PeerTls>>) -> Result<Member> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url: PeerUrl = format!("{scheme}://127.0.0.1:0").parse().map_err(anyhow::Error::msg)?;
    let listeners = Listeners::bind(&[url]).await?;
    let peer_urls = vec![format!("{scheme}://{}", listeners.addresses()?[0])];
    let id = MemberId::new(number).context("an ID that is not 0")?;
    let info = MemberInfo { id, name: number.to_string(), peer_urls, client_urls: vec![] };
    let config = Config {
        cluster: CLUSTER,
        member: info.clone(),
        max_message_bytes: 1 << 30,
        snapshot_bytes_per_second: None,
        timeouts: Timeouts::default(),
    };
    let wake = Arc::new(Notify::new());
    let notify = wake.clone();
    let transport = Transport::start(config, listeners, tls, move || notify.notify_one())?;
    Ok(Member { info, transport, wake })
}

impl Member {
    fn send(&self, to: &Member, number: u64, payload: &Bytes) {
        let content = Content::Data(Data { term: 1, previous: 0, payload: payload.clone() });
        let position = Position { term: 1, index: number + 1 };
        let body = Body::Append {
            previous: Position { term: 1, index: number },
            commit: number,
            entries: vec![Entry { position, content }],
        };
        let (from, to) = (self.info.id, to.info.id);
        self.transport.send(Message { cluster: CLUSTER, from, to, term: 1, body });
    }

    /// Waits for messages, and returns their number.
    async fn receive(&self) -> u64 {
        loop {
            let events = self.transport.events();
            let is_message = |event: &&Event| matches!(event, Event::Message(_));
            match events.iter().filter(is_message).count() {
                0 => self.wake.notified().await,
                count => return count as u64,
            }
        }
    }
}

/// Sends messages in one direction, `in_flight` at a time.
async fn measure(a: &Member, b: &Member, bytes: usize, in_flight: u64) {
    let payload = Bytes::from(vec![7; bytes]);
    let (start, cpu) = (Instant::now(), ProcessTime::now());
    let (mut sent, mut received) = (0, 0);
    while received < MESSAGES {
        while sent < MESSAGES.min(received + in_flight) {
            a.send(b, sent, &payload);
            sent += 1;
        }
        received += b.receive().await;
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / MESSAGES as f64;
    let (cpu, wall) = (each(cpu.elapsed()), each(start.elapsed()));
    println!("{bytes:>8} B {in_flight:>5} in flight {cpu:>8.1} µs of CPU {wall:>8.1} µs");
}

fn tls(dir: &std::path::Path) -> Result<PeerTls> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = rcgen::CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    let files = [
        (dir.join("ca"), ca.pem()),
        (dir.join("crt"), params.signed_by(&key, &ca)?.pem()),
        (dir.join("key"), key.serialize_pem()),
    ];
    files.iter().try_for_each(|(path, content)| std::fs::write(path, content))?;
    let [(trusted_ca, _), (cert, _), (key, _)] = files;
    PeerTls::new(PeerTlsFiles {
        cert,
        key,
        client_cert: None,
        trusted_ca,
        crl: None,
        allowed_common_names: vec![],
        allowed_hostnames: vec![],
        skip_client_san_verification: false,
    })
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (name, tls) in [("plain", None), ("TLS", Some(Arc::new(tls(dir.path())?)))] {
        let (a, b) = (start(1, tls.clone()).await?, start(2, tls).await?);
        a.transport.set_members([&b.info]);
        println!("{name}");
        for (bytes, in_flight) in [(1 << 10, 1), (1 << 10, 64), (64 << 10, 16)] {
            measure(&a, &b, bytes, in_flight).await;
        }
    }
    Ok(())
}
