//! gRPC's reflection service: returns descriptors to clients that lack the .proto files.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use etcdpb::reflection::server_reflection_request::MessageRequest;
use etcdpb::reflection::server_reflection_response::MessageResponse;
use etcdpb::reflection::{
    ErrorResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse,
};
use futures_util::{Stream, StreamExt};
use grpc::{Code, Requests, Status};
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

use super::service::Api;

impl Api {
    pub(super) fn reflection(
        self: Arc<Self>,
        requests: Requests<ServerReflectionRequest>,
    ) -> impl Stream<Item = Result<ServerReflectionResponse, Status>> {
        requests.map(|request| request.map(answer))
    }
}

fn answer(request: ServerReflectionRequest) -> ServerReflectionResponse {
    let response = match &request.message_request {
        None => error_response(Code::InvalidArgument, "the request is empty".into()),
        Some(MessageRequest::ListServices(_)) => {
            let service = |name: &String| ServiceResponse { name: name.clone() };
            let service = DESCRIPTORS.services.iter().map(service).collect();
            MessageResponse::ListServicesResponse(ListServiceResponse { service })
        }
        Some(MessageRequest::FileByFilename(name)) => {
            file_response(DESCRIPTORS.by_name.get(name), || format!("no file {name}"))
        }
        Some(MessageRequest::FileContainingSymbol(symbol)) => {
            file_response(DESCRIPTORS.by_symbol.get(symbol), || format!("no symbol {symbol}"))
        }
        Some(MessageRequest::FileContainingExtension(extension)) => {
            let name = &extension.containing_type;
            error_response(Code::NotFound, format!("no extension of {name}"))
        }
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => {
            error_response(Code::NotFound, format!("no extension of {name}"))
        }
    };
    ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(response),
    }
}

fn file_response(file: Option<&usize>, missing: impl Fn() -> String) -> MessageResponse {
    match file {
        None => error_response(Code::NotFound, missing()),
        Some(file) => MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
            file_descriptor_proto: DESCRIPTORS.with_imports(*file),
        }),
    }
}

fn error_response(code: Code, error_message: String) -> MessageResponse {
    let error_code = code as i32;
    MessageResponse::ErrorResponse(ErrorResponse { error_code, error_message })
}

/// The descriptors of all files. The maps contain positions in `files`.
struct Descriptors {
    files: Vec<FileDescriptorProto>,
    by_name: HashMap<String, usize>,
    by_symbol: HashMap<String, usize>,
    services: Vec<String>,
}

static DESCRIPTORS: LazyLock<Descriptors> = LazyLock::new(|| {
    let set =
        FileDescriptorSet::decode(etcdpb::DESCRIPTORS).expect("the build script generates it");
    let mut descriptors = Descriptors {
        files: set.file,
        by_name: HashMap::new(),
        by_symbol: HashMap::new(),
        services: Vec::new(),
    };
    for (at, file) in descriptors.files.iter().enumerate() {
        descriptors.by_name.insert(file.name().to_owned(), at);
        let mut symbols = Vec::new();
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            symbols.extend(service.method.iter().map(|m| format!("{name}.{}", m.name())));
            symbols.push(name.clone());
            descriptors.services.push(name);
        }
        symbols.extend(file.enum_type.iter().map(|e| format!("{}.{}", file.package(), e.name())));
        add_message_symbols(file.package(), &file.message_type, &mut symbols);
        descriptors.by_symbol.extend(symbols.into_iter().map(|symbol| (symbol, at)));
    }
    descriptors.services.sort_unstable();
    descriptors
});

/// Adds the names of messages and of the declarations in them to `symbols`.
fn add_message_symbols(scope: &str, declared: &[DescriptorProto], symbols: &mut Vec<String>) {
    for message in declared {
        let name = format!("{scope}.{}", message.name());
        symbols.extend(message.enum_type.iter().map(|e| format!("{name}.{}", e.name())));
        add_message_symbols(&name, &message.nested_type, symbols);
        symbols.push(name);
    }
}

impl Descriptors {
    /// Returns the encoded descriptors of a file and of the files that it imports
    /// directly.
    fn with_imports(&self, file: usize) -> Vec<prost::bytes::Bytes> {
        let imports = self.files[file].dependency.iter();
        let imports = imports.filter_map(|name| self.by_name.get(name));
        [&file]
            .into_iter()
            .chain(imports)
            .map(|at| self.files[*at].encode_to_vec().into())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: MessageRequest) -> MessageResponse {
        let request = ServerReflectionRequest { host: "h".into(), message_request: Some(request) };
        answer(request).message_response.unwrap()
    }

    #[test]
    fn every_served_symbol_is_described() {
        let MessageResponse::ListServicesResponse(list) =
            ask(MessageRequest::ListServices(String::new()))
        else {
            panic!("the response is not a list of services")
        };
        let names: Vec<_> = list.service.iter().map(|service| &service.name[..]).collect();
        assert!(names.contains(&"etcdserverpb.KV") && names.contains(&"grpc.health.v1.Health"));
        for symbol in ["etcdserverpb.KV.Put", "etcdserverpb.PutRequest", "mvccpb.Event.EventType"] {
            let MessageResponse::FileDescriptorResponse(files) =
                ask(MessageRequest::FileContainingSymbol(symbol.into()))
            else {
                panic!("{symbol} is not found")
            };
            let file = FileDescriptorProto::decode(&files.file_descriptor_proto[0][..]).unwrap();
            assert!(symbol.starts_with(file.package()));
        }
        let missing = ask(MessageRequest::FileContainingSymbol("etcdserverpb.Nothing".into()));
        let MessageResponse::ErrorResponse(error) = missing else {
            panic!("the response is not an error")
        };
        assert_eq!(error.error_code, Code::NotFound as i32);
    }
}
