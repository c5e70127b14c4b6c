//! Finds the boundaries between the events of a watch, so that a watch ends with a whole event.

use std::io::{self, Write};
use std::time::Duration;

use flate2::write::MultiGzDecoder;
use memchr::memmem;

/// The end of the initial events in a bookmark of a WatchList, as it is written in JSON and protobuf.
const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";
/// A compressed watch without a byte for this time is between two events: kube-apiserver compresses
/// and sends events as a whole. To be certain, the gateway would have to decompress all events.
const QUIET: Duration = Duration::from_millis(500);

/// Follows the bytes of a watch.
pub struct Framing {
    encoding: Encoding,
    /// Looks for the end of the initial events; `None` if there are none, or after their end.
    initial_events: Option<Search>,
    /// Bytes of the initial events without compression.
    initial_bytes: u64,
}

/// What is known about the initial events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialProgress {
    /// So many bytes so far, without compression.
    Going(u64),
    /// They are complete, with so many bytes.
    Complete(u64),
    /// Their end cannot be found.
    Lost,
}

enum Encoding {
    /// One JSON object in each line.
    Json { at_boundary: bool },
    /// A length of four bytes before each event.
    Protobuf { length: [u8; 4], length_bytes: usize, missing: usize },
    /// Any encoding, compressed. kube-apiserver compresses a WatchList, each flush as a gzip member.
    Gzip,
    /// Another encoding, whose boundaries are not known.
    Unknown,
}

/// The search for the end of the initial events. The decoder needs about 50 KiB until then.
enum Search {
    Plain(Mark),
    Gzip { decoder: Box<MultiGzDecoder<Mark>>, damaged: bool },
}

/// Finds the mark in bytes that come in pieces.
#[derive(Default)]
struct Mark {
    found: bool,
    /// Bytes seen so far.
    bytes: u64,
    /// The end of the bytes seen so far, in which the start of the mark may be.
    tail: Vec<u8>,
}

impl Framing {
    /// Creates a follower for a watch with these values of `Content-Type` and `Content-Encoding`.
    /// `initial_events` is true if the watch was asked to send the existing objects first.
    pub fn new(content_type: &[u8], content_encoding: &[u8], initial_events: bool) -> Framing {
        let plain = matches!(content_encoding, b"" | b"identity");
        let encoding = if content_encoding == b"gzip" {
            Encoding::Gzip
        } else if plain && content_type.starts_with(b"application/json") {
            Encoding::Json { at_boundary: true }
        } else if plain && content_type.starts_with(b"application/vnd.kubernetes.protobuf") {
            Encoding::Protobuf { length: [0; 4], length_bytes: 0, missing: 0 }
        } else {
            Encoding::Unknown
        };
        let search = || match encoding {
            Encoding::Gzip => {
                let decoder = Box::new(MultiGzDecoder::new(Mark::default()));
                Search::Gzip { decoder, damaged: false }
            }
            _ => Search::Plain(Mark::default()),
        };
        let initial_events = initial_events.then(search);
        Framing { encoding, initial_events, initial_bytes: 0 }
    }

    /// Follows further bytes.
    pub fn follow(&mut self, bytes: &[u8]) {
        if let Some(search) = &mut self.initial_events {
            let found = search.finds(bytes);
            self.initial_bytes = search.mark().bytes;
            if found {
                self.initial_events = None;
            }
        }
        match &mut self.encoding {
            Encoding::Json { at_boundary } => {
                if let Some(last) = bytes.last() {
                    *at_boundary = *last == b'\n';
                }
            }
            Encoding::Protobuf { length, length_bytes, missing } => {
                follow_protobuf(bytes, length, length_bytes, missing);
            }
            Encoding::Gzip | Encoding::Unknown => {}
        }
    }

    /// What is known about the initial events.
    pub fn initial_events(&self) -> InitialProgress {
        match (&self.initial_events, &self.encoding) {
            (None, _) => InitialProgress::Complete(self.initial_bytes),
            (Some(Search::Gzip { damaged: true, .. }), _) | (_, Encoding::Unknown) => {
                InitialProgress::Lost
            }
            (Some(_), _) => InitialProgress::Going(self.initial_bytes),
        }
    }

    /// Whether the watch can end here: after a whole event, and after the initial events. `quiet` is
    /// the time since the last byte.
    pub fn can_end(&self, quiet: Duration) -> bool {
        self.initial_events.is_none()
            && match self.encoding {
                Encoding::Json { at_boundary } => at_boundary,
                Encoding::Protobuf { length_bytes, missing, .. } => {
                    length_bytes == 0 && missing == 0
                }
                Encoding::Gzip => quiet >= QUIET,
                Encoding::Unknown => false,
            }
    }
}

impl Search {
    fn finds(&mut self, bytes: &[u8]) -> bool {
        match self {
            Search::Plain(mark) => {
                mark.follow(bytes);
                mark.found
            }
            Search::Gzip { decoder, damaged } => {
                // If the stream is damaged, the mark is never found, and the watch never ends early.
                *damaged =
                    *damaged || decoder.write_all(bytes).and_then(|()| decoder.flush()).is_err();
                !*damaged && decoder.get_ref().found
            }
        }
    }

    fn mark(&self) -> &Mark {
        match self {
            Search::Plain(mark) => mark,
            Search::Gzip { decoder, .. } => decoder.get_ref(),
        }
    }
}

impl Mark {
    fn follow(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        self.found |= memmem::find(&self.tail, INITIAL_EVENTS_END).is_some();
        let kept = INITIAL_EVENTS_END.len() - 1;
        self.tail.drain(..self.tail.len().saturating_sub(kept));
    }
}

impl Write for Mark {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.follow(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn follow_protobuf(
    mut bytes: &[u8],
    length: &mut [u8; 4],
    length_bytes: &mut usize,
    missing: &mut usize,
) {
    while !bytes.is_empty() {
        if *missing > 0 {
            let taken = bytes.len().min(*missing);
            *missing -= taken;
            bytes = &bytes[taken..];
            continue;
        }
        length[*length_bytes] = bytes[0];
        *length_bytes += 1;
        bytes = &bytes[1..];
        if *length_bytes == length.len() {
            *missing = u32::from_be_bytes(*length) as usize;
            *length_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    const JSON: &[u8] = b"application/json;stream=watch";
    const PROTOBUF: &[u8] = b"application/vnd.kubernetes.protobuf;stream=watch";

    #[test]
    fn json_ends_after_a_line() {
        let mut framing = Framing::new(JSON, b"", false);
        assert!(framing.can_end(Duration::ZERO));
        framing.follow(b"{\"type\"");
        assert!(!framing.can_end(Duration::ZERO));
        framing.follow(b":1}\n");
        assert!(framing.can_end(Duration::ZERO));
    }

    #[test]
    fn protobuf_ends_after_its_length_in_any_split() {
        let stream = [0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 1, 9];
        for split in 0..=stream.len() {
            let mut framing = Framing::new(PROTOBUF, b"", false);
            framing.follow(&stream[..split]);
            assert_eq!(framing.can_end(Duration::ZERO), [0, 7, 12].contains(&split), "{split}");
            framing.follow(&stream[split..]);
            assert!(framing.can_end(Duration::ZERO));
        }
    }

    #[test]
    fn a_watch_list_does_not_end_before_its_mark() {
        let mut framing = Framing::new(JSON, b"", true);
        framing.follow(b"{\"k8s.io/initial-ev");
        assert_eq!(framing.initial_events(), InitialProgress::Going(19));
        framing.follow(b"ents-end\":\"true\"");
        assert_eq!(framing.initial_events(), InitialProgress::Complete(35));
        assert!(!framing.can_end(Duration::ZERO));
        framing.follow(b"}\n");
        assert!(framing.can_end(Duration::ZERO));
        assert_eq!(framing.initial_events(), InitialProgress::Complete(35));
    }

    #[test]
    fn a_compressed_watch_list_ends_when_it_is_quiet_after_its_mark() {
        let member = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let mut framing = Framing::new(PROTOBUF, b"gzip", true);
        framing.follow(&member("an object"));
        assert_eq!(framing.initial_events(), InitialProgress::Going(9));
        assert!(!framing.can_end(QUIET));
        for byte in member("k8s.io/initial-events-end") {
            framing.follow(&[byte]);
        }
        assert!(!framing.can_end(Duration::ZERO));
        assert!(framing.can_end(QUIET));
        assert_eq!(framing.initial_events(), InitialProgress::Complete(9 + 25));
        let mut framing = Framing::new(PROTOBUF, b"gzip", true);
        framing.follow(b"this is not a gzip stream");
        assert_eq!(framing.initial_events(), InitialProgress::Lost);
        assert!(!framing.can_end(QUIET));
    }

    #[test]
    fn other_encodings_never_end() {
        assert!(!Framing::new(b"application/cbor-seq", b"", false).can_end(QUIET));
        assert!(!Framing::new(JSON, b"br", false).can_end(QUIET));
    }
}
