//! An API server's own load, read from its metrics.

use std::error::Error;

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt as _;

/// The metric, and the blank before its value.
const NAME: &[u8] = b"process_cpu_seconds_total ";
/// Bytes of a line. Longer lines are skipped, and not kept.
const MAX_LINE: usize = 256;
/// Bytes of a page. The metrics of an API server with all kinds of requests are 5 to 10 MB.
const MAX_PAGE: usize = 64 << 20;

/// Reads the value of `process_cpu_seconds_total` in a page of metrics in the text format. Only the
/// current line is kept: the page is many times larger than all other state of the gateway's probes. The
/// page is read to its end, because an API server logs an error for each answer that is broken off.
pub async fn read_cpu_seconds<B>(mut page: B) -> Result<f64>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut scanner = Scanner::default();
    let (mut size, mut found) = (0, None);
    while let Some(frame) = page.frame().await {
        let frame = frame.map_err(|error| anyhow!(error.into()))?;
        let Ok(bytes) = frame.into_data() else { continue };
        found = found.or_else(|| scanner.push(&bytes));
        size += bytes.len();
        if size > MAX_PAGE {
            bail!("the page of metrics has more than {MAX_PAGE} bytes");
        }
    }
    found
        .or_else(|| scanner.push(b"\n"))
        .ok_or_else(|| anyhow!("the page of metrics has no process_cpu_seconds_total"))
}

/// Finds the value in a page that comes in pieces.
#[derive(Default)]
struct Scanner {
    /// The first bytes of the current line, at most [`MAX_LINE`] and one.
    line: Vec<u8>,
}

impl Scanner {
    /// Adds a piece of the page. Returns the value if its line is complete.
    fn push(&mut self, piece: &[u8]) -> Option<f64> {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n");
            self.keep(text.unwrap_or(part));
            if text.is_some() {
                let value = value_of(&self.line);
                self.line.clear();
                if value.is_some() {
                    return value;
                }
            }
        }
        None
    }

    fn keep(&mut self, part: &[u8]) {
        let room = MAX_LINE + 1 - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }
}

/// Returns the value if this is the line of the metric.
fn value_of(line: &[u8]) -> Option<f64> {
    let value = line.strip_prefix(NAME).filter(|_| line.len() <= MAX_LINE)?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    const PAGE: &str = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total_x 1\n\
                        x{a=\"process_cpu_seconds_total 7\"} 1\nprocess_cpu_seconds_total 12.5\ny 1\n";

    fn body(pieces: Vec<String>) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        StreamBody::new(stream::iter(pieces).map(|piece| Ok(Frame::data(Bytes::from(piece)))))
    }

    #[tokio::test]
    async fn the_value_is_found_in_pieces_of_any_size() {
        for size in 1..PAGE.len() {
            let pieces = PAGE.as_bytes().chunks(size);
            let pieces = pieces.map(|piece| String::from_utf8(piece.to_vec()).unwrap()).collect();
            assert_eq!(read_cpu_seconds(body(pieces)).await.unwrap(), 12.5, "pieces of {size}");
        }
        let last = body(vec!["a 1\nprocess_cpu_seconds_total 3".into()]);
        assert_eq!(read_cpu_seconds(last).await.unwrap(), 3.0, "a last line without an end");
        let error = read_cpu_seconds(body(vec!["a 1\n".into()])).await.unwrap_err();
        assert!(error.to_string().contains("no process_cpu_seconds_total"), "{error}");
    }

    #[tokio::test]
    async fn the_page_is_read_to_its_end() {
        let pieces = [PAGE, "z 1\n", "process_cpu_seconds_total 99\n"];
        let mut read = 0;
        let page = stream::iter(pieces).map(|piece| {
            read += 1;
            Ok::<_, Infallible>(Frame::data(Bytes::from(piece)))
        });
        assert_eq!(read_cpu_seconds(StreamBody::new(page)).await.unwrap(), 12.5);
        assert_eq!(read, 3);
    }

    #[tokio::test]
    async fn an_endless_page_is_given_up() {
        let piece = Bytes::from("x 1\n".repeat(1 << 18));
        let page = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(piece.clone())));
        let error = read_cpu_seconds(StreamBody::new(page)).await.unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
    }

    #[test]
    fn a_long_line_is_not_kept() {
        let mut scanner = Scanner::default();
        let long = format!("process_cpu_seconds_total {}", "1".repeat(MAX_LINE));
        for _ in 0..1000 {
            assert_eq!(scanner.push(long.as_bytes()), None);
        }
        assert!(scanner.line.capacity() <= 4 * MAX_LINE, "{}", scanner.line.capacity());
        assert_eq!(scanner.push(b"\n"), None);
        assert_eq!(scanner.push(b"process_cpu_seconds_total 1\n"), Some(1.0));
    }
}
