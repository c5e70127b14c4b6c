//! An API server whose answers the test controls, a gateway process in front of it, and a client.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self as client, SendRequest};
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

/// The user of a kubelet.
const NODE: &str = "system:node:node-1";
/// The URL of its Lease.
pub const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1";
/// Time for everything that should happen at once.
const SOON: Duration = Duration::from_secs(120);

/// A certificate authority, and files of certificates that it signed.
pub struct Pki {
    pub folder: TempDir,
}

impl Pki {
    /// Creates the certificates of the API servers, the gateway and the front proxy.
    pub fn new() -> Pki {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: String, text: String| {
            fs::write(folder.path().join(name), text).unwrap();
        };
        for (ca, leaves) in [("ca", &["server", NODE][..]), ("front-proxy-ca", &["front-proxy"])] {
            let issuer = issuer(ca);
            write(format!("{ca}.crt"), issuer.pem());
            for leaf in leaves {
                let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
                params.distinguished_name.push(DnType::CommonName, *leaf);
                if *leaf == NODE {
                    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
                }
                let key = KeyPair::generate().unwrap();
                let signed = params.signed_by(&key, &issuer).unwrap();
                write(format!("{leaf}.crt"), signed.pem());
                write(format!("{leaf}.key"), key.serialize_pem());
            }
        }
        Pki { folder }
    }

    fn certificate(&self, leaf: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_file_iter(self.path(&format!("{leaf}.crt"))).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{leaf}.key"))).unwrap();
        (chain.collect::<Result<_, _>>().unwrap(), key)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn acceptor(&self) -> TlsAcceptor {
        let (chain, key) = self.certificate("server");
        let mut config =
            ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// Connects as nobody, or with a certificate.
    fn connector(&self, leaf: Option<&str>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.crt")).unwrap()).unwrap();
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match leaf.map(|leaf| self.certificate(leaf)) {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsConnector::from(Arc::new(config))
    }
}

fn issuer(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A LIST or a renewal that an API server got and whose answer the test writes.
pub struct Asked {
    pub url: String,
    /// The bytes of the answer; an error breaks it off.
    pub answer: mpsc::Sender<Result<Bytes, std::io::Error>>,
}

impl Asked {
    /// Sends bytes of the answer.
    pub async fn write(&self, bytes: usize) {
        assert!(self.try_write(bytes).await, "the answer is still read");
    }

    /// Sends bytes of the answer. Returns whether somebody still reads it.
    pub async fn try_write(&self, bytes: usize) -> bool {
        self.answer.send(Ok(Bytes::from(vec![b' '; bytes]))).await.is_ok()
    }

    /// Breaks the answer off.
    pub async fn break_off(self) {
        let error = std::io::Error::other("the test breaks the answer off");
        self.answer.send(Err(error)).await.unwrap();
    }
}

/// An API server. LISTs and renewals go to the test; everything else gets 200.
pub struct ApiServer {
    pub address: SocketAddr,
    pub asked: mpsc::Receiver<Asked>,
    stop: CancellationToken,
}

impl ApiServer {
    pub async fn start(pki: &Pki) -> ApiServer {
        ApiServer::with_type(pki, "application/json").await
    }

    /// Starts an API server whose LISTs have this content type.
    pub async fn with_type(pki: &Pki, content_type: &'static str) -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, asked) = mpsc::channel(1000);
        let (acceptor, stop) = (pki.acceptor(), CancellationToken::new());
        let stopped = stop.clone();
        tokio::spawn(async move {
            let accept = async {
                loop {
                    let (io, _) = listener.accept().await.unwrap();
                    let connection = serve(io, acceptor.clone(), sender.clone(), content_type);
                    let stopped = stopped.clone();
                    tokio::spawn(async move {
                        let _ = stopped.run_until_cancelled(connection).await;
                    });
                }
            };
            let _: Option<()> = stopped.run_until_cancelled(accept).await;
        });
        ApiServer { address, asked, stop }
    }

    /// The next LIST or renewal.
    pub async fn next(&mut self) -> Asked {
        let next = async {
            match self.asked.recv().await {
                Some(asked) => asked,
                // The server was killed.
                None => std::future::pending().await,
            }
        };
        tokio::time::timeout(SOON, next).await.expect("a request arrives")
    }

    /// Checks that none arrives.
    pub async fn nothing(&mut self) {
        let wait = tokio::time::timeout(Duration::from_millis(300), self.asked.recv()).await;
        if let Ok(Some(asked)) = wait {
            panic!("{} arrived too early", asked.url);
        }
    }

    /// Closes all connections, and accepts none.
    pub fn kill(&self) {
        self.stop.cancel();
    }
}

async fn serve(
    io: TcpStream,
    acceptor: TlsAcceptor,
    asked: mpsc::Sender<Asked>,
    content_type: &'static str,
) {
    let Ok(io) = acceptor.accept(io).await else { return };
    let service = service_fn(move |request| answer(request, asked.clone(), content_type));
    let builder = server::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(io), service).await;
}

type Body = BoxBody<Bytes, std::io::Error>;

async fn answer(
    request: Request<Incoming>,
    asked: mpsc::Sender<Asked>,
    content_type: &'static str,
) -> Result<Response<Body>, Infallible> {
    let url = request.uri().path_and_query().unwrap().to_string();
    if !url.starts_with("/api/v1/pods") && url != LEASE {
        let body = Full::new(Bytes::from_static(b"ok")).map_err(|never| match never {});
        return Ok(Response::new(body.boxed()));
    }
    let (sender, receiver) = mpsc::channel(1);
    asked.send(Asked { url, answer: sender }).await.unwrap();
    let frames = futures_util::stream::unfold(receiver, async |mut receiver| {
        let bytes: Result<Bytes, std::io::Error> = receiver.recv().await?;
        Some((bytes.map(Frame::data), receiver))
    });
    let mut answer = Response::new(StreamBody::new(Box::pin(frames)).boxed());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(answer)
}

/// A gateway process.
pub struct Gateway {
    pub address: SocketAddr,
    metrics: SocketAddr,
    process: Child,
}

impl Gateway {
    /// Starts a gateway with these further fields of the configuration, and waits until it is ready.
    pub async fn start(pki: &Pki, servers: &[&ApiServer], fields: &str) -> Gateway {
        let (address, metrics) = (free_address().await, free_address().await);
        let config = configure(pki, (address, metrics), servers, fields);
        let gateway = Gateway { address, metrics, process: start_process(&config) };
        gateway.until_ready(servers.len()).await;
        gateway
    }

    /// Replaces the configuration, and waits until all API servers are ready.
    pub async fn reload(&self, pki: &Pki, servers: &[&ApiServer], fields: &str) {
        configure(pki, (self.address, self.metrics), servers, fields);
        let kill = Command::new("kill").arg("-HUP").arg(self.process.id().to_string()).status();
        assert!(kill.unwrap().success());
        self.until_ready(servers.len()).await;
    }

    async fn until_ready(&self, servers: usize) {
        self.until("all API servers are ready", async || {
            self.metric("kube_gateway_server_ready").await == servers as f64
        })
        .await;
    }

    /// Bytes of memory of the process.
    pub fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// The sum of a metric's samples.
    pub async fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics").await.unwrap_or_default();
        let values = page.lines().filter(|line| line.starts_with(name));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    async fn page(&self, path: &str) -> Option<String> {
        let io = TcpStream::connect(self.metrics).await.ok()?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(io)).await;
        let (mut sender, connection) = handshake.ok()?;
        tokio::spawn(connection);
        let request = Request::get(path).header("host", "a").body(Empty::<Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.ok()?;
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        String::from_utf8(body.to_vec()).ok()
    }

    /// Waits until a condition is true.
    pub async fn until(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let wait = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(SOON, wait).await.is_err() {
            let page = self.page("/metrics").await.unwrap_or_default();
            panic!("not within {SOON:?}: {what}\n{page}");
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes the configuration of a gateway with these addresses for clients and for its pages.
fn configure(
    pki: &Pki,
    (address, metrics): (SocketAddr, SocketAddr),
    servers: &[&ApiServer],
    fields: &str,
) -> PathBuf {
    let servers: Vec<_> = servers.iter().map(|server| server.address.to_string()).collect();
    let text = format!(
        "apiVersion: gateway.k8s-1m.dev/v1alpha1
kind: GatewayConfiguration
listen: {{address: '{address}', metricsAddress: '{metrics}', certFile: server.crt, keyFile: server.key, clientCaFile: ca.crt}}
upstream: {{servers: {servers:?}, caFile: ca.crt}}
requestHeader: {{certFile: front-proxy.crt, keyFile: front-proxy.key}}
{fields}
"
    );
    let config = pki.path("gateway.yaml");
    fs::write(&config, text).unwrap();
    config
}

fn start_process(config: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_kube-gateway"))
        .arg("--config")
        .arg(config)
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// A client with one connection to a gateway.
#[derive(Clone)]
pub struct Client(SendRequest<Full<Bytes>>);

impl Client {
    pub async fn connect(pki: &Pki, gateway: &Gateway) -> Client {
        Client::with_window(pki, gateway, 4 << 20).await
    }

    /// Connects a client that takes `window` bytes without reading them.
    pub async fn with_window(pki: &Pki, gateway: &Gateway, window: u32) -> Client {
        Client::start(pki.connector(None), gateway, window).await
    }

    /// Connects the kubelet that may renew [`LEASE`].
    pub async fn kubelet(pki: &Pki, gateway: &Gateway) -> Client {
        Client::start(pki.connector(Some(NODE)), gateway, 4 << 20).await
    }

    async fn start(connector: TlsConnector, gateway: &Gateway, window: u32) -> Client {
        let io = TcpStream::connect(gateway.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let io = connector.connect(name, io).await.unwrap();
        let mut builder = client::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window).initial_connection_window_size(window);
        let (sender, connection) = builder.handshake(TokioIo::new(io)).await.unwrap();
        tokio::spawn(connection);
        Client(sender)
    }

    /// Sends a request, and returns the head of its answer.
    pub async fn get(&self, url: &str, agent: &str) -> Response<Incoming> {
        let request = Request::get(format!("https://a{url}"))
            .header("user-agent", agent)
            .body(Full::default())
            .unwrap();
        self.0.clone().send_request(request).await.unwrap()
    }

    /// Sends what looks like a renewal. Returns the status of its answer; `None` if that broke off.
    pub async fn renew(&self) -> Option<StatusCode> {
        let body = Bytes::from_static(b"k8s\0");
        let request = Request::put(format!("https://a{LEASE}"))
            .header("user-agent", "kubelet/v1.37.1")
            .header("accept", "application/vnd.kubernetes.protobuf")
            .header("content-type", "application/vnd.kubernetes.protobuf")
            .header("content-length", body.len())
            .body(Full::new(body))
            .unwrap();
        let (head, body) = self.0.clone().send_request(request).await.unwrap().into_parts();
        body.collect().await.ok().map(|_| head.status)
    }

    /// Sends a request, and returns the status and the header of its complete answer.
    pub async fn complete(&self, url: &str, agent: &str) -> (StatusCode, HeaderMap, Bytes) {
        let (head, body) = self.get(url, agent).await.into_parts();
        (head.status, head.headers, body.collect().await.unwrap().to_bytes())
    }
}
