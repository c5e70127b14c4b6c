//! Files of lines, compressed or not. What was flushed can be read, whatever became
//! of the writer.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

use crate::line::{Head, Line, VERSION};

const BUFFER_BYTES: usize = 1 << 18;
/// Longer lines are not read: this is no recording.
const MAX_LINE_BYTES: u64 = 256 << 20;
/// How a recording begins.
const HEAD_START: &[u8] = br#"{"type":"head""#;
/// Fast, and small enough: recordings repeat themselves.
const ZSTD_LEVEL: i32 = 1;

/// How a recording is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// As the end of a file's name says.
    pub fn of(path: &Path) -> Compression {
        match path.extension().and_then(|end| end.to_str()) {
            Some("zst") => Compression::Zstd,
            Some("gz") => Compression::Gzip,
            _ => Compression::None,
        }
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Compression::None),
            "gzip" => Ok(Compression::Gzip),
            "zstd" => Ok(Compression::Zstd),
            _ => Err("is not zstd, gzip or none".into()),
        }
    }
}

/// Why a recording cannot be read.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error("read {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path}, line {line}: not a line of a recording: {source}")]
    Line { path: String, line: u64, source: serde_json::Error },
    #[error("{path} is not a recording of etcd-proxy: it does not begin with a head")]
    NoHead { path: String },
    #[error(
        "{path} has version {found}, this program knows {VERSION}; use the one that recorded it"
    )]
    Version { path: String, found: u32 },
}

/// Writes lines.
pub struct Writer(Output);

enum Output {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
}

impl Writer {
    /// To a file that is open.
    pub fn new(file: File, compression: Compression) -> io::Result<Writer> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Writer(match compression {
            Compression::None => Output::Plain(file),
            Compression::Gzip => Output::Gzip(GzEncoder::new(file, flate2::Compression::fast())),
            Compression::Zstd => Output::Zstd(zstd::Encoder::new(file, ZSTD_LEVEL)?),
        }))
    }

    /// Adds a line, which is in the file for certain after the next flush.
    pub fn line(&mut self, line: &Line) -> io::Result<()> {
        let output = self.output();
        serde_json::to_writer(&mut *output, line)?;
        output.write_all(b"\n")
    }

    /// Makes what was written readable, should nothing come after it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output().flush()
    }

    /// Ends the file as its format wants it.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Output::Plain(mut file) => file.flush(),
            Output::Gzip(encoder) => encoder.finish()?.flush(),
            Output::Zstd(encoder) => encoder.finish()?.flush(),
        }
    }

    fn output(&mut self) -> &mut dyn Write {
        match &mut self.0 {
            Output::Plain(file) => file,
            Output::Gzip(encoder) => encoder,
            Output::Zstd(encoder) => encoder,
        }
    }
}

/// Reads lines, one after the other.
pub struct Reader {
    path: PathBuf,
    input: Box<dyn BufRead>,
    head: Head,
    buffer: Vec<u8>,
    line: u64,
    cut: bool,
}

impl Reader {
    /// Opens a recording and reads its head. How it is packed shows in its bytes. Of a
    /// writer that was killed at once there is an empty file, or half a head: a
    /// recording that is cut and has nothing in it.
    pub fn open(path: &Path) -> Result<Reader, Error> {
        let input = unpacked(path)
            .map_err(|source| Error::Read { path: path.display().to_string(), source })?;
        let mut reader = Reader {
            path: path.into(),
            input,
            head: Head::default(),
            buffer: Vec::new(),
            line: 0,
            cut: false,
        };
        match reader.read() {
            Ok(Some(Line::Head(head))) if head.version == VERSION => reader.head = head,
            Ok(Some(Line::Head(head))) => {
                return Err(Error::Version { path: reader.name(), found: head.version });
            }
            Err(error @ Error::Read { .. }) => return Err(error),
            Ok(None) if begins_head(&reader.buffer) => reader.cut = true,
            _ => return Err(Error::NoHead { path: reader.name() }),
        }
        Ok(reader)
    }

    /// What the recording says of itself.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Whether the file ends in the middle: its writer was killed, or still writes.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&mut self) -> Result<Option<Line>, Error> {
        self.buffer.clear();
        let read = (&mut self.input).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.buffer);
        match read {
            Ok(_) => {}
            Err(error) if is_cut(&error) => self.cut = true,
            Err(source) => return Err(Error::Read { path: self.name(), source }),
        }
        self.line += 1;
        if self.buffer.pop_if(|last| *last == b'\n').is_none() {
            // What has no end was being written.
            self.cut |= !self.buffer.is_empty();
            return Ok(None);
        }
        serde_json::from_slice(&self.buffer).map(Some).map_err(|source| Error::Line {
            path: self.name(),
            line: self.line,
            source,
        })
    }
}

impl Iterator for Reader {
    type Item = Result<Line, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Whether a line that has no end may be that of a head.
fn begins_head(line: &[u8]) -> bool {
    HEAD_START.starts_with(line) || line.starts_with(HEAD_START)
}

/// A packed file that ends before its format does. (zstd says of a block that is cut
/// short only that it is incomplete.)
fn is_cut(error: &io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof
}

fn unpacked(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
    let start = file.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(file)))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = zstd::Decoder::with_buffer(file)?;
            Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder))
        }
        _ => Box::new(file),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Missing;

    const ALL: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Zstd];

    fn head() -> Line {
        Line::Head(Head { version: VERSION, program: "test".into(), ..Head::default() })
    }

    fn missing(lines: u64) -> Line {
        Line::Missing(Missing { time: 1, lines })
    }

    fn counted(path: &Path) -> (u64, bool) {
        let mut reader = Reader::open(path).unwrap();
        let mut count = 0;
        for line in &mut reader {
            count += 1;
            assert_eq!(line.unwrap(), missing(count));
        }
        (count, reader.is_cut())
    }

    #[test]
    fn what_is_written_is_read() {
        for compression in ALL {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut writer = Writer::new(file.reopen().unwrap(), compression).unwrap();
            writer.line(&head()).unwrap();
            (1..=1000).for_each(|n| writer.line(&missing(n)).unwrap());
            writer.finish().unwrap();
            assert_eq!(counted(file.path()), (1000, false), "{compression:?}");
        }
    }

    /// Whatever the length to which a file is cut, what was flushed before is there.
    #[test]
    fn a_file_that_is_cut_is_read_to_its_last_flush() {
        for compression in ALL {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut writer = Writer::new(file.reopen().unwrap(), compression).unwrap();
            writer.line(&head()).unwrap();
            (1..=100).for_each(|n| writer.line(&missing(n)).unwrap());
            writer.flush().unwrap();
            let flushed = file.as_file().metadata().unwrap().len();
            (101..=200).for_each(|n| writer.line(&missing(n)).unwrap());
            writer.flush().unwrap();
            let all = file.as_file().metadata().unwrap().len();
            for len in (flushed..all).rev() {
                file.as_file().set_len(len).unwrap();
                let (count, _) = counted(file.path());
                assert!((100..=200).contains(&count), "{compression:?}: {count} of {len} bytes");
            }
            // As its writer was killed right after the flush.
            let (count, cut) = counted(file.path());
            assert_eq!((count, cut), (100, compression != Compression::None), "{compression:?}");
        }
    }

    #[test]
    fn a_writer_that_was_killed_at_once_leaves_an_empty_recording() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for start in [&b""[..], b"{\"type\":\"he", b"\x28\xb5\x2f\xfd\x00", b"\x1f\x8b\x08"] {
            std::fs::write(file.path(), start).unwrap();
            assert_eq!(counted(file.path()), (0, true), "{start:?}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refusal = |content: &str| {
            std::fs::write(file.path(), content).unwrap();
            Reader::open(file.path()).err().unwrap().to_string()
        };
        assert!(refusal("hello").contains("does not begin with a head"));
        assert!(refusal("hello\n").contains("does not begin with a head"));
        let newer = refusal(
            "{\"type\":\"head\",\"version\":9,\"program\":\"\",\"started_unix_ns\":0,\"endpoints\":[],\"values\":\"none\"}\n",
        );
        assert!(newer.contains("has version 9"), "{newer}");
    }

    #[test]
    fn a_line_that_is_damaged_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let head = serde_json::to_string(&head()).unwrap();
        std::fs::write(file.path(), format!("{head}\n{{\"type\":\"miss\n{head}\n")).unwrap();
        let mut reader = Reader::open(file.path()).unwrap();
        let error = reader.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("line 2: not a line of a recording"), "{error}");
    }
}
