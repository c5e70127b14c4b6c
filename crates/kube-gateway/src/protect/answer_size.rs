//! The size of an answer without its compression.
//!
//! The end of a gzip member has the number of bytes that it decompresses to, and kube-apiserver
//! compresses a LIST as one member. So the size is exact at the end without decompressing, and
//! estimated until then.

/// Follows the bytes of an answer.
pub struct AnswerSize {
    received: u64,
    /// Absent if the answer is not compressed.
    gzip: Option<Gzip>,
}

struct Gzip {
    /// The expected ratio of the sizes.
    ratio: f64,
    /// The last bytes so far.
    tail: [u8; 4],
}

impl AnswerSize {
    /// Starts with an answer with this `Content-Encoding`. `ratio` is the expected one of its sizes.
    pub fn new(content_encoding: &[u8], ratio: f64) -> AnswerSize {
        let gzip = (content_encoding == b"gzip").then_some(Gzip { ratio, tail: [0; 4] });
        AnswerSize { received: 0, gzip }
    }

    /// Follows further bytes.
    pub fn follow(&mut self, bytes: &[u8]) {
        self.received += bytes.len() as u64;
        let Some(gzip) = &mut self.gzip else { return };
        let kept = bytes.len().min(4);
        gzip.tail.rotate_left(kept);
        gzip.tail[4 - kept..].copy_from_slice(&bytes[bytes.len() - kept..]);
    }

    /// The estimated size of what was received so far.
    pub fn so_far(&self) -> u64 {
        let ratio = self.gzip.as_ref().map_or(1.0, |gzip| gzip.ratio);
        (self.received as f64 * ratio) as u64
    }

    /// The size, and the ratio of a compressed answer, after the last byte.
    pub fn at_end(&self) -> (u64, Option<f64>) {
        let Some(gzip) = &self.gzip else { return (self.received, None) };
        let size = u64::from(u32::from_le_bytes(gzip.tail));
        // Several members, over 4 GiB, or no gzip at all.
        if size < self.received / 2 {
            return (self.so_far(), None);
        }
        (size, Some(size as f64 / self.received.max(1) as f64))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn the_size_of_a_compressed_answer_is_exact_at_its_end_in_any_split() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&b"a pod like any other; ".repeat(1000)).unwrap();
        let compressed = encoder.finish().unwrap();
        for piece in 1..compressed.len() {
            let mut size = AnswerSize::new(b"gzip", 3.0);
            compressed.chunks(piece).for_each(|piece| size.follow(piece));
            assert_eq!(size.so_far(), 3 * compressed.len() as u64);
            let (bytes, ratio) = size.at_end();
            assert_eq!(bytes, 22_000, "{piece}");
            assert_eq!(ratio, Some(22_000.0 / compressed.len() as f64));
        }
    }

    #[test]
    fn what_is_not_compressed_counts_as_it_is() {
        let mut size = AnswerSize::new(b"", 3.0);
        size.follow(b"hello");
        assert_eq!((size.so_far(), size.at_end()), (5, (5, None)));
        let mut size = AnswerSize::new(b"gzip", 3.0);
        size.follow(&[0; 100]);
        assert_eq!(size.at_end(), (300, None));
    }
}
