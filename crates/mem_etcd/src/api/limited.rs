//! etcd's services for a client that may only touch some keys (`--client-cert-permission`).
//!
//! Only the methods that are listed in [`routes`] with a handler of their own can be called; all
//! others are refused. The checks are those of etcd for a user without the role root, with one
//! exception: leases are refused.

use std::sync::Arc;

use bytes::Bytes;
use etcdpb::rpc::request_op::Request;
use etcdpb::rpc::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest,
    RangeStreamResponse, RequestOp, TxnRequest, TxnResponse, WatchRequest,
};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use grpc::{Admission, Code, Encoded, Requests, Routes, Service, Status};

use super::nested_txn::NestedTxn;
use super::pieces::WriteResponse;
use super::service::Api;
use super::{status, validate};
use crate::permissions::Grants;

/// The state of the services for a client that may only touch some keys.
pub struct Limited {
    api: Arc<Api>,
    grants: Arc<Grants>,
}

/// Registers every method of etcd's services for a client with these grants.
pub fn routes(api: Arc<Api>, grants: Arc<Grants>) -> Routes<Limited> {
    let routes = Routes::new(Arc::new(Limited { api, grants }))
        .admitted_unary("/etcdserverpb.KV/Range", Limited::range)
        .server_stream("/etcdserverpb.KV/RangeStream", Limited::range_stream)
        .admitted_unary("/etcdserverpb.KV/Put", Limited::put)
        .admitted_unary("/etcdserverpb.KV/DeleteRange", Limited::delete_range)
        .admitted_unary("/etcdserverpb.KV/Txn", Limited::txn)
        .admitted_bidirectional("/etcdserverpb.Watch/Watch", Limited::watch)
        .admitted_unary("/etcdserverpb.Cluster/MemberList", |limited, request, admission| {
            limited.api.clone().member_list(request, admission)
        })
        .admitted_unary("/etcdserverpb.Maintenance/Status", |limited, request, admission| {
            limited.api.clone().status(request, admission)
        })
        .admitted_unary("/etcdserverpb.Auth/AuthStatus", |limited, request, admission| {
            limited.api.clone().auth_status(request, admission)
        })
        .unary("/grpc.health.v1.Health/Check", |limited, request| {
            limited.api.clone().health_check(request)
        });
    let routes =
        REFUSED_METHODS.iter().fold(routes, |routes, path| routes.unary(path, Limited::refuse));
    REFUSED_STREAMS.iter().fold(routes, |routes, path| {
        routes.bidirectional(path, |_, _: Requests<()>| {
            stream::once(async { Err::<(), _>(status::permission_denied()) })
        })
    })
}

/// Methods with one request and one response that such a client may not call.
const REFUSED_METHODS: [&str; 32] = [
    "/etcdserverpb.KV/Compact",
    "/etcdserverpb.Lease/LeaseGrant",
    "/etcdserverpb.Lease/LeaseRevoke",
    "/etcdserverpb.Lease/LeaseTimeToLive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/etcdserverpb.Cluster/MemberAdd",
    "/etcdserverpb.Cluster/MemberRemove",
    "/etcdserverpb.Cluster/MemberUpdate",
    "/etcdserverpb.Cluster/MemberPromote",
    "/etcdserverpb.Maintenance/Alarm",
    "/etcdserverpb.Maintenance/Defragment",
    "/etcdserverpb.Maintenance/Hash",
    "/etcdserverpb.Maintenance/HashKV",
    "/etcdserverpb.Maintenance/MoveLeader",
    "/etcdserverpb.Maintenance/Downgrade",
    "/grpc.health.v1.Health/List",
    "/etcdserverpb.Auth/AuthEnable",
    "/etcdserverpb.Auth/AuthDisable",
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/UserAdd",
    "/etcdserverpb.Auth/UserGet",
    "/etcdserverpb.Auth/UserList",
    "/etcdserverpb.Auth/UserDelete",
    "/etcdserverpb.Auth/UserChangePassword",
    "/etcdserverpb.Auth/UserGrantRole",
    "/etcdserverpb.Auth/UserRevokeRole",
    "/etcdserverpb.Auth/RoleAdd",
    "/etcdserverpb.Auth/RoleGet",
    "/etcdserverpb.Auth/RoleList",
    "/etcdserverpb.Auth/RoleDelete",
    "/etcdserverpb.Auth/RoleGrantPermission",
    "/etcdserverpb.Auth/RoleRevokePermission",
];

/// Methods with streams that such a client may not call.
const REFUSED_STREAMS: [&str; 5] = [
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/etcdserverpb.Maintenance/Snapshot",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

impl Limited {
    async fn range(
        self: Arc<Self>,
        request: RangeRequest,
        admission: Admission,
    ) -> Result<Encoded, Status> {
        validate::range(&request)?;
        self.grants.check_range(&request)?;
        self.api.clone().range(request, admission).await
    }

    fn range_stream(
        self: Arc<Self>,
        request: RangeRequest,
        admission: Admission,
    ) -> BoxStream<'static, Result<RangeStreamResponse, Status>> {
        let checked =
            validate::range_stream(&request).and_then(|()| self.grants.check_range(&request));
        match checked {
            Ok(()) => self.api.clone().range_stream(request, admission),
            Err(status) => stream::once(async { Err(status) }).boxed(),
        }
    }

    async fn put(
        self: Arc<Self>,
        request: PutRequest,
        admission: Admission,
    ) -> Result<WriteResponse<PutResponse>, Status> {
        validate::put(&request)?;
        self.grants.check_put(&request)?;
        self.api.clone().put(request, admission).await
    }

    async fn delete_range(
        self: Arc<Self>,
        request: DeleteRangeRequest,
        admission: Admission,
    ) -> Result<WriteResponse<DeleteRangeResponse>, Status> {
        validate::delete_range(&request)?;
        self.grants.check_delete(&request)?;
        self.api.clone().delete_range(request, admission).await
    }

    async fn txn(
        self: Arc<Self>,
        NestedTxn(request): NestedTxn,
        admission: Admission,
    ) -> Result<WriteResponse<TxnResponse>, Status> {
        validate::txn(&request, self.api.limits.txn_ops)?;
        self.grants.check_txn(&request)?;
        self.api.clone().txn(NestedTxn(request), admission).await
    }

    fn watch(
        self: Arc<Self>,
        requests: Requests<WatchRequest>,
        admission: Admission,
    ) -> impl Stream<Item = Result<Encoded, Status>> {
        self.api.clone().watch_within(requests, admission, Some(self.grants.clone()))
    }

    async fn refuse(self: Arc<Self>, (): ()) -> Result<(), Status> {
        Err(status::permission_denied())
    }
}

impl Grants {
    fn check_range(&self, request: &RangeRequest) -> Result<(), Status> {
        permit(self.may_read(&request.key, &request.range_end))
    }

    /// A lease would let others delete the key, and the key keep the lease of others.
    fn check_put(&self, request: &PutRequest) -> Result<(), Status> {
        let key = &request.key;
        let reads = !request.prev_kv || self.may_read(key, b"");
        permit(self.may_write(key, b"") && reads && request.lease == 0)
    }

    fn check_delete(&self, request: &DeleteRangeRequest) -> Result<(), Status> {
        let (key, end) = (&request.key, &request.range_end);
        permit(self.may_write(key, end) && (!request.prev_kv || self.may_read(key, end)))
    }

    /// As in etcd, both branches must be permitted, because their comparison reads too.
    fn check_txn(&self, request: &TxnRequest) -> Result<(), Status> {
        for compare in &request.compare {
            permit(self.may_read(&compare.key, &compare.range_end))?;
        }
        request.success.iter().chain(&request.failure).try_for_each(|op| self.check_op(op))
    }

    fn check_op(&self, op: &RequestOp) -> Result<(), Status> {
        match &op.request {
            Some(Request::RequestRange(request)) => self.check_range(request),
            Some(Request::RequestPut(request)) => self.check_put(request),
            Some(Request::RequestDeleteRange(request)) => self.check_delete(request),
            Some(Request::RequestTxn(request)) => self.check_txn(request),
            None => Ok(()),
        }
    }
}

fn permit(permitted: bool) -> Result<(), Status> {
    if permitted { Ok(()) } else { Err(status::permission_denied()) }
}

impl Service for Limited {
    #[inline]
    fn check_call(&self, path: &'static str) -> Result<(), Status> {
        self.api.check_call(path)
    }

    fn call_ended(&self, path: &'static str, code: Code) {
        self.api.call_ended(path, code);
    }

    fn bytes_received(&self, bytes: usize) {
        self.api.bytes_received(bytes);
    }

    fn bytes_sent(&self, bytes: usize) {
        self.api.bytes_sent(bytes);
    }

    fn page(&self, request: http::Request<()>) -> BoxFuture<'static, http::Response<Bytes>> {
        self.api.page(request)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use etcdpb::rpc::compare::CompareResult;
    use etcdpb::rpc::watch_create_request::FilterType;
    use etcdpb::rpc::watch_request::RequestUnion;
    use etcdpb::rpc::{
        Compare, RangeResponse, WatchCreateRequest, WatchProgressRequest, WatchResponse,
    };
    use mvcc::Command;
    use pipeline::{ClientId, Pipeline};
    use prost::Message;
    use prost_types::FileDescriptorSet;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::config::Config;
    use crate::credentials::Credentials;
    use crate::metrics::Metrics;
    use crate::permissions;

    /// A connection of a client that may read and write `/l/`, read `/r/` and write `/w/`. The
    /// store has the keys `/l/1` and `/s/1`.
    struct Client(h2::client::SendRequest<Bytes>);

    /// The messages and the status of a call. The status is `None` if the call goes on.
    type Answer = (Vec<Bytes>, Option<(Code, String)>);

    impl Client {
        async fn connect() -> Client {
            let config = Config::try_parse_from(["mem_etcd", "--wal-mode", "none"]).unwrap();
            let identity = data_dir::Identity { cluster_id: 1, member_id: 2 };
            let pipeline = Arc::new(Pipeline::open(&config.pipeline_options(), identity).unwrap());
            let metrics = Arc::new(Metrics::new(pipeline.clone()));
            for key in ["/l/1", "/s/1"] {
                pipeline.propose(ClientId(0), Command::Put(put(key)), 0).await.unwrap();
            }
            let credentials = Credentials::new(&config).unwrap();
            let pages = axum::Router::new();
            let api = Arc::new(Api::new(pipeline, metrics, credentials, &config, pages));
            let texts = ["c=readwrite:/l/", "c=read:/r/", "c=write:/w/"];
            let permissions: Vec<_> = texts.iter().map(|text| text.parse().unwrap()).collect();
            let grants = permissions::by_name(&permissions)["c"].clone();
            let routes = Arc::new(routes(api, grants));
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            tokio::spawn(async move {
                let stop = CancellationToken::new();
                grpc::serve(theirs, &[], routes, None, &config.grpc_options(), stop).await
            });
            let (send, connection) = h2::client::handshake(ours).await.unwrap();
            tokio::spawn(connection);
            Client(send)
        }

        /// Calls a method with these messages. Reads all messages and the status; with `open`, does not
        /// end the call, and reads as many messages as were sent.
        async fn call(&mut self, path: &str, messages: &[Vec<u8>], open: bool) -> Answer {
            let request = http::Request::post(format!("http://test{path}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(())
                .unwrap();
            let (head, mut requests) = self.0.send_request(request, false).unwrap();
            let prefixed = |message: &Vec<u8>| {
                [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
            };
            let bytes: Vec<u8> = messages.iter().flat_map(prefixed).collect();
            requests.send_data(bytes.into(), !open).unwrap();
            let head = head.await.unwrap();
            if let Some(status) = status_of(head.headers()) {
                return (vec![], Some(status));
            }
            let (mut body, mut received, mut read) = (head.into_body(), Vec::new(), Vec::new());
            while let Some(data) = body.data().await {
                received.extend_from_slice(&data.unwrap());
                while let Some(message) = take_message(&mut received) {
                    read.push(message);
                }
                if open && read.len() >= messages.len() {
                    return (read, None);
                }
            }
            let trailers = body.trailers().await.unwrap().unwrap();
            (read, status_of(&trailers))
        }

        async fn code(&mut self, path: &str, message: &impl Message) -> Code {
            let (_, status) = self.call(path, &[message.encode_to_vec()], false).await;
            let (code, message) = status.unwrap();
            if code == Code::PermissionDenied {
                assert_eq!(message, "etcdserver: permission denied");
            }
            code
        }

        /// Whether the method is permitted with this message.
        async fn may(&mut self, path: &str, message: &impl Message) -> bool {
            match self.code(path, message).await {
                Code::Ok => true,
                Code::PermissionDenied => false,
                code => panic!("{path}: {}", code.name()),
            }
        }
    }

    /// Removes the first message from the received bytes, if it is complete.
    fn take_message(received: &mut Vec<u8>) -> Option<Bytes> {
        let len = u32::from_be_bytes(received.get(1..5)?.try_into().unwrap()) as usize;
        let message = Bytes::copy_from_slice(received.get(5..5 + len)?);
        received.drain(..5 + len);
        Some(message)
    }

    fn status_of(fields: &http::HeaderMap) -> Option<(Code, String)> {
        let number: usize = fields.get("grpc-status")?.to_str().unwrap().parse().unwrap();
        let message = fields.get("grpc-message").map_or("", |text| text.to_str().unwrap());
        Some((Code::ALL[number], message.into()))
    }

    fn put(key: &str) -> PutRequest {
        PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() }
    }

    fn range(key: &str, end: &str) -> RangeRequest {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        RangeRequest { key, range_end, ..Default::default() }
    }

    fn delete(key: &str, end: &str) -> DeleteRangeRequest {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        DeleteRangeRequest { key, range_end, prev_kv: false }
    }

    fn compare(key: &str, end: &str) -> Compare {
        let result = CompareResult::Equal as i32;
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        Compare { key, range_end, result, ..Default::default() }
    }

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    /// Every method that is not one of these is refused, whatever it is asked for.
    #[tokio::test]
    async fn every_other_method_is_refused() {
        const CHECKED: [&str; 10] = [
            "/etcdserverpb.KV/Range",
            "/etcdserverpb.KV/RangeStream",
            "/etcdserverpb.KV/Put",
            "/etcdserverpb.KV/DeleteRange",
            "/etcdserverpb.KV/Txn",
            "/etcdserverpb.Watch/Watch",
            "/etcdserverpb.Cluster/MemberList",
            "/etcdserverpb.Maintenance/Status",
            "/etcdserverpb.Auth/AuthStatus",
            "/grpc.health.v1.Health/Check",
        ];
        let mut client = Client::connect().await;
        let files = FileDescriptorSet::decode(etcdpb::DESCRIPTORS).unwrap().file;
        let mut refused = 0;
        for file in files {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    if !CHECKED.contains(&path.as_str()) {
                        assert_eq!(client.code(&path, &()).await, Code::PermissionDenied, "{path}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > CHECKED.len());
        // Some of them are not in the descriptors.
        for path in REFUSED_METHODS.iter().chain(&REFUSED_STREAMS) {
            assert_eq!(client.code(path, &()).await, Code::PermissionDenied, "{path}");
        }
        for path in &CHECKED[6..] {
            assert_eq!(client.code(path, &()).await, Code::Ok, "{path}");
        }
        let open = client.call("/etcdserverpb.Maintenance/Snapshot", &[vec![]], true).await;
        assert_eq!(open.1.unwrap().0, Code::PermissionDenied);
    }

    #[tokio::test]
    async fn ranges_are_limited() {
        let mut client = Client::connect().await;
        for (key, end, expected) in [
            ("/l/1", "", true),
            ("/l/", "/l0", true),
            ("/r/1", "", true),
            ("/w/1", "", false),
            ("/s/1", "", false),
            ("/l/", "\0", false),
            ("\0", "\0", false),
            ("/l/", "/s0", false),
            ("/l", "/l0", false),
        ] {
            for path in ["/etcdserverpb.KV/Range", "/etcdserverpb.KV/RangeStream"] {
                for count_only in [false, true] {
                    let request = RangeRequest { count_only, ..range(key, end) };
                    assert_eq!(client.may(path, &request).await, expected, "{path} {key} {end:?}");
                }
            }
        }
        let empty = client.code("/etcdserverpb.KV/Range", &range("", "\0")).await;
        assert_eq!(empty, Code::InvalidArgument);
        let message = range("/l/", "/l0").encode_to_vec();
        let (read, _) = client.call("/etcdserverpb.KV/Range", &[message], false).await;
        assert_eq!(RangeResponse::decode(read[0].clone()).unwrap().kvs.len(), 1);
    }

    #[tokio::test]
    async fn puts_and_deletes_are_limited() {
        let mut client = Client::connect().await;
        for (key, writes, both) in [
            ("/l/1", true, true),
            ("/w/1", true, false),
            ("/r/1", false, false),
            ("/s/1", false, false),
        ] {
            let path = "/etcdserverpb.KV/Put";
            assert_eq!(client.may(path, &put(key)).await, writes, "{key}");
            let request = PutRequest { prev_kv: true, ..put(key) };
            assert_eq!(client.may(path, &request).await, both, "{key}");
            let request = PutRequest { lease: 7, ..put(key) };
            assert!(!client.may(path, &request).await, "{key}");
            let path = "/etcdserverpb.KV/DeleteRange";
            let request = DeleteRangeRequest { prev_kv: true, ..delete(key, "") };
            assert_eq!(client.may(path, &request).await, both, "{key}");
            assert_eq!(client.may(path, &delete(key, "")).await, writes, "{key}");
            assert!(!client.may(path, &delete(key, "\0")).await, "{key}");
            assert!(!client.may(path, &delete(key, "/z")).await, "{key}");
        }
        assert!(client.may("/etcdserverpb.KV/DeleteRange", &delete("/l/", "/l0")).await);
    }

    #[tokio::test]
    async fn transactions_are_limited() {
        let mut client = Client::connect().await;
        let nested = |op: RequestOp| op_txn(TxnRequest { failure: vec![op], ..Default::default() });
        let compares =
            |key, end| TxnRequest { compare: vec![compare(key, end)], ..Default::default() };
        let path = "/etcdserverpb.KV/Txn";
        for (key, end, expected) in [
            ("/l/1", "", true),
            ("/r/1", "", true),
            ("/w/1", "", false),
            ("/s/1", "", false),
            ("/l/", "\0", false),
            ("/l/", "/s0", false),
        ] {
            assert_eq!(client.may(path, &compares(key, end)).await, expected, "{key} {end:?}");
            let inner = nested(op_txn(compares(key, end)));
            let request = TxnRequest { success: vec![inner], ..Default::default() };
            assert_eq!(client.may(path, &request).await, expected, "nested: {key} {end:?}");
        }
        let reads = |key, end| op(Request::RequestRange(range(key, end)));
        let puts = |key| op(Request::RequestPut(put(key)));
        let deletes = |key, end| op(Request::RequestDeleteRange(delete(key, end)));
        for (operation, expected) in [
            (reads("/l/", "/l0"), true),
            (puts("/l/1"), true),
            (deletes("/l/", "/l0"), true),
            (reads("/s/1", ""), false),
            (reads("/l/", "\0"), false),
            (puts("/s/1"), false),
            (puts("/r/1"), false),
            (op(Request::RequestPut(PutRequest { lease: 1, ..put("/l/1") })), false),
            (op(Request::RequestPut(PutRequest { prev_kv: true, ..put("/w/1") })), false),
            (deletes("/l/", "\0"), false),
            (deletes("/r/1", ""), false),
        ] {
            let success = vec![operation.clone()];
            let failure = success.clone();
            let inner = vec![nested(nested(operation.clone()))];
            for request in [
                TxnRequest { success, ..Default::default() },
                TxnRequest { failure, ..Default::default() },
                TxnRequest { success: inner, ..Default::default() },
            ] {
                assert_eq!(client.may(path, &request).await, expected, "{request:?}");
            }
        }
    }

    fn op_txn(request: TxnRequest) -> RequestOp {
        op(Request::RequestTxn(request))
    }

    #[tokio::test]
    async fn watches_are_limited() {
        let mut client = Client::connect().await;
        let message = |union| WatchRequest { request_union: Some(union) }.encode_to_vec();
        for (key, end, expected) in [
            ("/l/1", "", true),
            ("/l/", "/l0", true),
            ("/r/1", "", true),
            ("/w/1", "", false),
            ("/s/", "/s0", false),
            ("/l/", "\0", false),
            ("", "", false),
            ("", "\0", false),
        ] {
            let create = WatchCreateRequest {
                key: key.to_owned().into(),
                range_end: end.to_owned().into(),
                start_revision: 1,
                filters: vec![FilterType::Nodelete as i32],
                prev_kv: true,
                progress_notify: true,
                fragment: true,
                ..Default::default()
            };
            let create = message(RequestUnion::CreateRequest(create));
            let (read, _) = client.call("/etcdserverpb.Watch/Watch", &[create], true).await;
            let response = WatchResponse::decode(read[0].clone()).unwrap();
            assert!(response.created && response.events.is_empty());
            assert_eq!(!response.canceled, expected, "{key} {end:?}");
            if !expected {
                assert_eq!(
                    response.cancel_reason,
                    "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
                );
            }
        }
        // Progress tells the revision, as the header of every response does.
        let create = WatchCreateRequest { key: "/l/2".into(), ..Default::default() };
        let create = message(RequestUnion::CreateRequest(create));
        let progress = message(RequestUnion::ProgressRequest(WatchProgressRequest {}));
        let (read, _) = client.call("/etcdserverpb.Watch/Watch", &[create, progress], true).await;
        let progress = WatchResponse::decode(read[1].clone()).unwrap();
        assert!(!progress.created && progress.events.is_empty());
    }
}
