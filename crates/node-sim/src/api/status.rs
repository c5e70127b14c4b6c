//! The status with which the server refuses a request or ends a watch.

use prost::Message;

use super::envelope::decode;

/// Characters of a message that are logged.
const MAX_MESSAGE: usize = 300;

/// A status.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    /// What is wrong.
    #[prost(string, tag = "3")]
    pub message: String,
    /// The status code of HTTP.
    #[prost(int32, tag = "6")]
    pub code: i32,
}

/// The message in the body of an answer that is not a success, for the log.
pub fn status_message(body: &[u8]) -> String {
    let message = match decode::<Status>(body) {
        Some(status) => status.message,
        None => String::from_utf8_lossy(body).into_owned(),
    };
    message.chars().take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::encode;

    #[test]
    fn the_message_is_found_in_protobuf_and_in_other_bodies() {
        let status = Status { message: "no".into(), code: 403 };
        assert_eq!(status_message(&encode("v1", "Status", &status)), "no");
        assert_eq!(status_message(b"upstream is down"), "upstream is down");
        assert_eq!(status_message(&[b'x'; 5000]).len(), MAX_MESSAGE);
    }
}
