//! Sessions with tokio-rustls on the other side.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tls_socket::{ClientSide, Received, ServerSide, TlsSocket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// Returns the configurations of a server and of a client that trusts it.
fn configs(version: &'static SupportedProtocolVersion) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let key = KeyPair::generate().unwrap();
    let ca = Issuer::new(ca_params(), key);
    let ca_certificate = ca_params().self_signed(ca.key()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["server".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut server = ServerConfig::builder_with_protocol_versions(&[version])
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let mut roots = RootCertStore::empty();
    roots.add(ca_certificate.der().clone()).unwrap();
    let mut client = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    (Arc::new(server), Arc::new(client))
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
}

async fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

fn name() -> ServerName<'static> {
    ServerName::try_from("server").unwrap()
}

/// A session whose server is a [`TlsSocket`].
async fn server_session(
    version: &'static SupportedProtocolVersion,
) -> (tokio_rustls::client::TlsStream<TcpStream>, TlsSocket<ServerSide>) {
    let (server, client) = configs(version);
    let (near, far) = connected().await;
    let connector = TlsConnector::from(client);
    let (client, server) =
        tokio::join!(connector.connect(name(), near), TlsSocket::accept(far, server));
    (client.unwrap(), server.unwrap())
}

/// A session whose client is a [`TlsSocket`].
async fn client_session(
    version: &'static SupportedProtocolVersion,
) -> (TlsSocket<ClientSide>, tokio_rustls::server::TlsStream<TcpStream>) {
    let (server, client) = configs(version);
    let (near, far) = connected().await;
    let acceptor = TlsAcceptor::from(server);
    let (client, server) =
        tokio::join!(TlsSocket::connect(near, client, name()), acceptor.accept(far));
    (client.unwrap(), server.unwrap())
}

#[tokio::test]
async fn both_sides_negotiate_a_protocol() {
    for version in VERSIONS {
        let (_client, server) = server_session(version).await;
        assert_eq!(server.session().alpn_protocol(), Some(&b"h2"[..]));
        let (client, _server) = client_session(version).await;
        assert_eq!(client.session().alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(client.session().peer_certificates().map(<[_]>::len), Some(1));
    }
}

/// Sends a megabyte each way at the same time and compares it.
async fn echo(
    mut one: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    mut two: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
) {
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    let send_and_echo = async {
        let (mut reader, mut writer) = tokio::io::split(&mut one);
        let mut received = Vec::new();
        let write = async {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(write, reader.read_to_end(&mut received));
        read.unwrap();
        assert!(received == sent, "{} bytes came back", received.len());
    };
    let echo = async {
        let (mut reader, mut writer) = tokio::io::split(&mut two);
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    tokio::join!(send_and_echo, echo);
}

#[tokio::test]
async fn streams_carry_bytes_until_both_have_ended() {
    for version in VERSIONS {
        let (client, server) = server_session(version).await;
        echo(client, server).await;
        let (client, server) = server_session(version).await;
        echo(server, client).await;
        let (client, server) = client_session(version).await;
        echo(client, server).await;
    }
}

#[tokio::test]
async fn slices_are_gathered_and_the_end_is_received() {
    let (mut client, mut server) = server_session(&TLS13).await;
    let slices = [&b"a"[..], b"", b"bc", b"def"].map(IoSlice::new);
    assert_eq!(server.seal(&slices).unwrap(), 6);
    let long = vec![1; 20_000];
    assert_eq!(server.seal(&[IoSlice::new(&long), IoSlice::new(b"x")]).unwrap(), 16 << 10);
    poll_fn(|cx| server.poll_flush(cx)).await.unwrap();
    assert_eq!(server.unsent(), 0);
    let mut received = vec![0; 6 + (16 << 10)];
    client.read_exact(&mut received).await.unwrap();
    assert_eq!(&received[..8], b"abcdef\x01\x01");
    client.write_all(b"hello").await.unwrap();
    client.shutdown().await.unwrap();
    let mut text = Vec::new();
    let mut sink = |bytes: &[u8]| text.extend_from_slice(bytes);
    while poll_fn(|cx| server.poll_receive(cx, &mut sink)).await.unwrap() == Received::Bytes {}
    assert_eq!(text, b"hello");
}

#[tokio::test]
async fn a_slow_reader_leaves_records_unsent() {
    let (mut client, mut server) = server_session(&TLS13).await;
    let block = vec![7; 16 << 10];
    let mut sealed = 0;
    while server.unsent() < (64 << 10) {
        sealed += server.seal(&[IoSlice::new(&block)]).unwrap();
        let _ = poll_fn(|cx| std::task::Poll::Ready(server.poll_flush(cx))).await;
        assert!(sealed < 1 << 30, "the socket takes everything");
    }
    let mut received = vec![0; sealed];
    let flush = poll_fn(|cx| server.poll_flush(cx));
    let (flushed, read) = tokio::join!(flush, client.read_exact(&mut received));
    flushed.unwrap();
    read.unwrap();
    assert!(received.iter().all(|byte| *byte == 7));
}

/// A socket that gets and sends through a relay that forwards single bytes.
async fn slow_pair() -> (TcpStream, TcpStream) {
    let (near, relay_near) = connected().await;
    let (relay_far, far) = connected().await;
    tokio::spawn(async move {
        let (mut near_read, mut near_write) = relay_near.into_split();
        let (mut far_read, mut far_write) = relay_far.into_split();
        let forward = async {
            while let Ok(byte) = near_read.read_u8().await {
                far_write.write_u8(byte).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let back = async {
            while let Ok(byte) = far_read.read_u8().await {
                near_write.write_u8(byte).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(forward, back);
    });
    for socket in [&near, &far] {
        socket.set_nodelay(true).unwrap();
    }
    (near, far)
}

#[tokio::test]
async fn records_may_arrive_in_single_bytes() {
    for version in VERSIONS {
        let (server, client) = configs(version);
        let (near, far) = slow_pair().await;
        let connect = TlsSocket::connect(near, client, name());
        let (client, server) = tokio::join!(connect, TlsSocket::accept(far, server));
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        let send = async {
            client.write_all(&[5; 3000]).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(send, server.read_to_end(&mut received));
        read.unwrap();
        assert!(received == [5; 3000]);
    }
}

#[tokio::test]
async fn garbage_is_an_error_and_gets_an_alert() {
    let (server, _) = configs(&TLS13);
    let (mut near, far) = connected().await;
    let accepted = tokio::spawn(TlsSocket::accept(far, server));
    near.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let error = accepted.await.unwrap().err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    let mut alert = Vec::new();
    // The socket is closed with unread bytes, which may be a reset.
    let _ = near.read_to_end(&mut alert).await;
    assert_eq!(alert.first(), Some(&21), "an alert record");
}

#[tokio::test]
async fn a_client_refuses_an_unknown_server() {
    let (server, _) = configs(&TLS13);
    let (_, client) = configs(&TLS13);
    let (near, far) = connected().await;
    let acceptor = TlsAcceptor::from(server);
    let connect = TlsSocket::connect(near, client, name());
    let (connected, accepted) = tokio::join!(connect, acceptor.accept(far));
    let error = connected.err().expect("an error").to_string();
    assert!(error.starts_with("invalid peer certificate"), "{error}");
    assert!(accepted.is_err());
}

#[tokio::test]
async fn damaged_and_cut_sessions_end() {
    let (client, mut server) = server_session(&TLS13).await;
    let (mut socket, _) = client.into_inner();
    socket.write_all(&[23, 3, 3, 0, 20]).await.unwrap();
    socket.write_all(&[0; 20]).await.unwrap();
    let mut nothing = |_: &[u8]| panic!("no plaintext");
    let damaged = loop {
        match poll_fn(|cx| server.poll_receive(cx, &mut nothing)).await {
            Ok(Received::Bytes) => {}
            other => break other,
        }
    };
    assert_eq!(damaged.unwrap_err().kind(), ErrorKind::InvalidData);
    let (client, mut server) = server_session(&TLS13).await;
    drop(client.into_inner());
    let mut text = [0; 10];
    let cut = tokio::time::timeout(Duration::from_secs(60), server.read(&mut text)).await.unwrap();
    assert!(cut.is_err(), "{cut:?}");
}

/// Connects two sockets through a relay that changes the byte at `position` of what one side sends.
async fn damaged_pair(position: usize, from_server: bool) -> (TcpStream, TcpStream) {
    let (near, relay_near) = connected().await;
    let (relay_far, far) = connected().await;
    tokio::spawn(async move {
        let (near_read, near_write) = relay_near.into_split();
        let (far_read, far_write) = relay_far.into_split();
        let change = |here: bool| if here { position } else { usize::MAX };
        tokio::join!(
            relay(near_read, far_write, change(!from_server)),
            relay(far_read, near_write, change(from_server))
        );
    });
    (near, far)
}

async fn relay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, position: usize) {
    let (mut passed, mut buffer) = (0, [0; 1000]);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if let Some(byte) = position.checked_sub(passed).and_then(|at| buffer[..read].get_mut(at)) {
            *byte ^= 1 << (position % 8);
        }
        passed += read;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// A damaged byte anywhere in a handshake and in the records after it is an error of one side, and
/// nothing else: rustls must not be asked again after an error, and panics if it is.
#[tokio::test]
async fn damaged_bytes_are_errors() {
    for version in VERSIONS {
        let (server, client) = configs(version);
        for position in (0..3000).step_by(11) {
            for from_server in [false, true] {
                let (near, far) = damaged_pair(position, from_server).await;
                let run = async {
                    let connect = TlsSocket::connect(near, client.clone(), name());
                    let accept = TlsSocket::accept(far, server.clone());
                    let send = async |mut socket: TlsSocket<ClientSide>| {
                        let _ = socket.write_all(&[1; 1500]).await;
                        let _ = socket.read(&mut [0; 1500]).await;
                        let _ = socket.write_all(&[1; 1500]).await;
                        let _ = socket.shutdown().await;
                    };
                    let answer = async |mut socket: TlsSocket<ServerSide>| {
                        let _ = socket.write_all(&[2; 1500]).await;
                        let _ = socket.read_to_end(&mut Vec::new()).await;
                        let _ = socket.write_all(&[2; 1500]).await;
                        let _ = socket.shutdown().await;
                    };
                    tokio::join!(
                        async {
                            if let Ok(socket) = connect.await {
                                send(socket).await;
                            }
                        },
                        async {
                            if let Ok(socket) = accept.await {
                                answer(socket).await;
                            }
                        }
                    );
                };
                // A damaged length lets a side wait for bytes that never come.
                let _ = tokio::time::timeout(Duration::from_millis(20), run).await;
            }
        }
    }
}
