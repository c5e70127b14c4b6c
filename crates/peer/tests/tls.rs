//! TLS between members: only certificates of the CA, with the right names, are accepted.

mod node;

use std::path::Path;
use std::sync::Arc;

use consensus::membership::MemberInfo;
use node::{Node, Settings, eventually, id};
use peer::{Answer, Listeners, PeerTls, PeerTlsFiles, PeerUrl};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

type Ca = CertifiedIssuer<'static, KeyPair>;

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Returns the serial number of the certificate with this name.
fn serial(name: &str) -> u64 {
    name.bytes().fold(1, |serial, byte| serial << 8 | u64::from(byte))
}

/// Writes a certificate for `hosts` and its key, and the certificate of the CA that others must
/// have.
fn files(dir: &Path, name: &str, signer: &Ca, trusted: &Ca, hosts: &[&str]) -> PeerTlsFiles {
    let mut params =
        CertificateParams::new(hosts.iter().map(|host| host.to_string()).collect::<Vec<_>>())
            .unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(serial(name)));
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, signer).unwrap();
    let write = |suffix: &str, content: String| {
        let path = dir.join(format!("{name}.{suffix}"));
        std::fs::write(&path, content).unwrap();
        path
    };
    PeerTlsFiles {
        cert: write("crt", certificate.pem()),
        key: write("key", key.serialize_pem()),
        client_cert: None,
        trusted_ca: write("ca", trusted.pem()),
        crl: None,
        allowed_common_names: vec![],
        allowed_hostnames: vec![],
        skip_client_san_verification: false,
    }
}

fn settings(files: PeerTlsFiles) -> Settings {
    let tls = Some(Arc::new(PeerTls::new(files).unwrap()));
    Settings { tls, url: "https://127.0.0.1:0".to_owned(), ..Settings::default() }
}

fn introduce(a: &Node, b: &Node) {
    a.transport.set_members([&a.info, &b.info]);
    b.transport.set_members([&a.info, &b.info]);
}

fn refused(node: &Node, answer: Answer) -> u64 {
    node.transport.status().refused.get(&answer).copied().unwrap_or_default()
}

const HOST: &[&str] = &["127.0.0.1"];

#[tokio::test]
async fn members_with_certificates_of_the_ca_talk() {
    let (dir, ca) = (TempDir::new().unwrap(), ca("peers"));
    let of = |name| settings(files(dir.path(), name, &ca, &ca, HOST));
    let mut a = Node::start(1, "a", &of("a")).await;
    let mut b = Node::start(2, "b", &of("b")).await;
    introduce(&a, &b);
    a.reach(&mut b).await;
    b.reach(&mut a).await;
    a.append(b.info.id, 1, 9 << 20);
    while b.wait_for(peer::Class::Log).await.0 != 1 {}
    assert_eq!(a.transport.probe(&b.url()).await.unwrap().member, b.info);
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused_on_both_sides() {
    let (dir, good, evil) = (TempDir::new().unwrap(), ca("peers"), ca("evil"));
    let mut a = Node::start(1, "a", &settings(files(dir.path(), "a", &good, &good, HOST))).await;
    // It trusts the CA of the others, but has no certificate of it.
    let evil = settings(files(dir.path(), "e", &evil, &good, HOST));
    let mut e = Node::start(2, "e", &evil).await;
    introduce(&a, &e);
    let invalid = |node: &Node| node.transport.status().invalid_connections;
    eventually("refusals by the server", || invalid(&a) >= 3).await;
    eventually("refusals by the client", || invalid(&e) >= 3).await;
    assert!(a.transport.probe(&e.url()).await.is_err());
    let connected = |node: &Node| {
        let status = node.transport.status();
        status.peers.iter().flat_map(|peer| &peer.streams).any(|(_, s)| s.is_connected)
    };
    assert!(!connected(&a));
    // In TLS 1.3 a client is told afterwards that its certificate is refused.
    let messages = |node: &mut Node| {
        node.transport.events().iter().any(|event| matches!(event, peer::Event::Message(_)))
    };
    e.heartbeat(a.info.id, 1);
    a.heartbeat(e.info.id, 1);
    assert!(!messages(&mut a) && !messages(&mut e));
}

#[tokio::test]
async fn a_certificate_does_not_permit_urls_of_other_hosts() {
    let (dir, ca) = (TempDir::new().unwrap(), ca("peers"));
    let a = Node::start(1, "a", &settings(files(dir.path(), "a", &ca, &ca, HOST))).await;
    // A client of the store, whose certificate is of the same CA.
    let mut client = files(dir.path(), "client", &ca, &ca, &["client.example"]);
    let c = Node::start(2, "c", &settings(client.clone())).await;
    c.transport.set_members([&a.info]);
    eventually("a refusal", || refused(&a, Answer::Certificate) >= 2).await;
    assert!(a.transport.events().is_empty() && a.transport.status().peers.is_empty());
    // A member may have another certificate as a client, if this is allowed.
    let mut lenient = files(dir.path(), "b", &ca, &ca, HOST);
    lenient.skip_client_san_verification = true;
    let mut b = Node::start(3, "b", &settings(lenient)).await;
    client.client_cert = Some((client.cert.clone(), client.key.clone()));
    let server = files(dir.path(), "server", &ca, &ca, HOST);
    (client.cert, client.key) = (server.cert, server.key);
    let mut d = Node::start(4, "d", &settings(client)).await;
    introduce(&b, &d);
    d.reach(&mut b).await;
    b.reach(&mut d).await;
    d.transport.set_members([&a.info]);
    let before = refused(&a, Answer::Certificate);
    eventually("a refusal", || refused(&a, Answer::Certificate) > before).await;
    assert!(a.transport.events().is_empty());
}

#[tokio::test]
async fn names_of_certificates_can_be_limited() {
    let (dir, ca) = (TempDir::new().unwrap(), ca("peers"));
    let of = |name: &str, common: &[&str], hosts: &[&str]| {
        let mut files = files(dir.path(), name, &ca, &ca, &["127.0.0.1", &format!("{name}.peer")]);
        files.allowed_common_names = common.iter().map(|name| name.to_string()).collect();
        files.allowed_hostnames = hosts.iter().map(|name| name.to_string()).collect();
        settings(files)
    };
    let mut a = Node::start(1, "a", &of("a", &["a", "b"], &["a.peer", "b.peer"])).await;
    let mut b = Node::start(2, "b", &of("b", &[], &["a.peer"])).await;
    introduce(&a, &b);
    a.reach(&mut b).await;
    b.reach(&mut a).await;
    let c = Node::start(3, "c", &of("c", &[], &[])).await;
    c.transport.set_members([&a.info, &b.info]);
    eventually("a refusal by a", || refused(&a, Answer::Certificate) >= 2).await;
    eventually("a refusal by b", || refused(&b, Answer::Certificate) >= 2).await;
    // Also as servers.
    assert!(a.transport.probe(&c.url()).await.is_err());
    assert!(b.transport.probe(&c.url()).await.is_err());
    assert!(c.transport.probe(&a.url()).await.is_ok());
}

#[tokio::test]
async fn a_server_must_have_the_name_of_the_url() {
    let (dir, ca) = (TempDir::new().unwrap(), ca("peers"));
    let a = Node::start(1, "a", &settings(files(dir.path(), "a", &ca, &ca, HOST))).await;
    let other = files(dir.path(), "b", &ca, &ca, &["127.0.0.2"]);
    let b = Node::start(2, "b", &settings(other)).await;
    let error = a.transport.probe(&b.url()).await.unwrap_err();
    assert!(error.to_string().contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn changed_files_apply_to_the_next_handshake() {
    let (dir, old, new) = (TempDir::new().unwrap(), ca("old"), ca("new"));
    let of = |ca: &Ca, name: &str| files(dir.path(), name, ca, ca, HOST);
    let a = Node::start(1, "a", &settings(of(&old, "a"))).await;
    let b = Node::start(2, "b", &settings(of(&old, "b"))).await;
    assert!(a.transport.probe(&b.url()).await.is_ok());
    of(&new, "b");
    assert!(a.transport.probe(&b.url()).await.is_err());
    of(&new, "a");
    assert!(a.transport.probe(&b.url()).await.is_ok());
    // Files that cannot be used do not replace those in use.
    std::fs::write(dir.path().join("a.crt"), "no certificate").unwrap();
    assert!(a.transport.probe(&b.url()).await.is_ok());
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_on_both_sides() {
    let (dir, ca) = (TempDir::new().unwrap(), ca("peers"));
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(2100, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: SerialNumber::from(serial("b")),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let crl = dir.path().join("crl");
    std::fs::write(&crl, list.signed_by(&ca).unwrap().pem().unwrap()).unwrap();
    let of = |name, crl: Option<&Path>| {
        let mut files = files(dir.path(), name, &ca, &ca, HOST);
        files.crl = crl.map(Path::to_owned);
        settings(files)
    };
    let mut a = Node::start(1, "a", &of("a", Some(&crl))).await;
    let b = Node::start(2, "b", &of("b", None)).await;
    let mut c = Node::start(3, "c", &of("c", Some(&crl))).await;
    assert!(a.transport.probe(&b.url()).await.is_err());
    assert!(b.transport.probe(&a.url()).await.is_err());
    introduce(&a, &c);
    a.reach(&mut c).await;
    c.reach(&mut a).await;
}

#[tokio::test]
async fn garbage_and_plain_text_are_refused() {
    let (dir, ca) = (TempDir::new().unwrap(), ca("peers"));
    let a = Node::start(1, "a", &settings(files(dir.path(), "a", &ca, &ca, HOST))).await;
    for bytes in [&b"k1m-peer\x03 and so on, without TLS"[..], &[0x16, 3, 1, 0xff, 0xff, 1]] {
        let mut stream = TcpStream::connect(a.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    // A member without TLS does not send to one with TLS, and none connects without a certificate.
    let plain = Node::start(2, "b", &Settings::default()).await;
    let error = plain.transport.probe(&a.url()).await.unwrap_err();
    assert!(error.to_string().contains("needs a certificate"), "{error}");
    let peer_urls = vec![a.url().to_string().replace("https", "http")];
    plain.transport.set_members([&MemberInfo { peer_urls, ..a.info.clone() }]);
    eventually("refusals", || a.transport.status().invalid_connections >= 2).await;
}

#[tokio::test]
async fn https_needs_a_certificate_and_http_a_loopback_address() {
    let url: PeerUrl = "https://127.0.0.1:0".parse().unwrap();
    let listeners = Listeners::bind(&[url]).await.unwrap();
    let config = peer::Config {
        cluster: node::CLUSTER,
        member: MemberInfo {
            id: id(1),
            name: "a".to_owned(),
            peer_urls: vec![],
            client_urls: vec![],
        },
        max_message_bytes: 1 << 20,
        snapshot_bytes_per_second: None,
        timeouts: peer::Timeouts::default(),
    };
    let started = peer::Transport::start(config, listeners, None, || {});
    assert!(started.err().unwrap().to_string().contains("need a certificate"));
    let url: PeerUrl = "http://0.0.0.0:0".parse().unwrap();
    let error = Listeners::bind(&[url]).await.err().unwrap();
    assert!(format!("{error:#}").contains("use https"), "{error:#}");
}
