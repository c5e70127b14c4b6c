//! Trace files: JSON records, one per line, optionally compressed. Flushed records can be read
//! even if the writer was killed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

use crate::record::{Head, Record, VERSION};

/// Size of the buffers for reading and writing in bytes.
const BUFFER_BYTES: usize = 1 << 18;
/// Maximum length of a line in bytes. A file with longer lines is not a trace.
const MAX_LINE_BYTES: u64 = 256 << 20;
/// The first bytes of a decompressed trace.
const HEAD_START: &[u8] = br#"{"type":"head""#;
/// Zstandard's fastest standard level. It compresses traces well enough, because they are
/// repetitive.
const ZSTD_LEVEL: i32 = 1;

/// The compression of a trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// The compression that the extension of a file name requests: `.zst`, `.gz` or, with any
    /// other extension, none.
    pub fn for_path(path: &Path) -> Compression {
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
            _ => Err("must be zstd, gzip or none".into()),
        }
    }
}

/// An error that prevents reading a trace.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// The file could not be read or decompressed.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// A line is not a record.
    #[error("{path}, line {line}: not a trace record: {source}")]
    Record {
        /// The file.
        path: String,
        /// The line number, from 1.
        line: u64,
        /// The cause.
        source: serde_json::Error,
    },
    /// The file does not start with a head record.
    #[error("{path} is not an etcd-proxy trace: the first record is not a head")]
    NoHead {
        /// The file.
        path: String,
    },
    /// The trace has an unsupported version.
    #[error(
        "{path} has version {found}, but this program supports version {VERSION}; use the program version that recorded it"
    )]
    Version {
        /// The file.
        path: String,
        /// The version of the trace.
        found: u32,
    },
}

/// Writes records to a trace file.
pub struct Writer(Output);

enum Output {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
}

impl Writer {
    /// Creates a writer that appends to an open file.
    ///
    /// # Errors
    /// Fails if the compressor cannot be created.
    pub fn new(file: File, compression: Compression) -> io::Result<Writer> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Writer(match compression {
            Compression::None => Output::Plain(file),
            Compression::Gzip => Output::Gzip(GzEncoder::new(file, flate2::Compression::fast())),
            Compression::Zstd => Output::Zstd(zstd::Encoder::new(file, ZSTD_LEVEL)?),
        }))
    }

    /// Appends a record to the buffer. After the next [`Writer::flush`] it is in the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        let output = self.output();
        serde_json::to_writer(&mut *output, record)?;
        output.write_all(b"\n")
    }

    /// Writes all appended records to the file, so that readers can read them.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output().flush()
    }

    /// Writes all appended records and the end of the compressed data to the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
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

/// Reads the records of a trace file.
pub struct Reader {
    path: PathBuf,
    input: Box<dyn BufRead>,
    head: Head,
    /// The last line that was read.
    buffer: Vec<u8>,
    /// The number of the last line that was read, from 1.
    line: u64,
    truncated: bool,
}

impl Reader {
    /// Opens a trace and reads its head record. The compression is detected from the first
    /// bytes. A file that is empty or ends within the head record is a truncated trace without
    /// records: its writer was killed right after the start.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a trace of this version.
    pub fn open(path: &Path) -> Result<Reader, Error> {
        let input = open_decompressed(path)
            .map_err(|source| Error::Read { path: path.display().to_string(), source })?;
        let mut reader = Reader {
            path: path.into(),
            input,
            head: Head::default(),
            buffer: Vec::new(),
            line: 0,
            truncated: false,
        };
        match reader.read_record() {
            Ok(Some(Record::Head(head))) if head.version == VERSION => reader.head = head,
            Ok(Some(Record::Head(head))) => {
                return Err(Error::Version { path: reader.name(), found: head.version });
            }
            Err(error @ Error::Read { .. }) => return Err(error),
            Ok(None) if is_start_of_head(&reader.buffer) => reader.truncated = true,
            _ => return Err(Error::NoHead { path: reader.name() }),
        }
        Ok(reader)
    }

    /// The head record. If the file ends within it, a default value.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Whether the records read so far end with an incomplete line or with incomplete
    /// compressed data: the writer was killed or is still running.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read_record(&mut self) -> Result<Option<Record>, Error> {
        self.buffer.clear();
        let read = (&mut self.input).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.buffer);
        match read {
            Ok(_) => {}
            Err(error) if is_truncation(&error) => self.truncated = true,
            Err(source) => return Err(Error::Read { path: self.name(), source }),
        }
        self.line += 1;
        if self.buffer.pop_if(|last| *last == b'\n').is_none() {
            // The end of the file. A line without a newline was not written completely.
            self.truncated |= !self.buffer.is_empty();
            return Ok(None);
        }
        serde_json::from_slice(&self.buffer).map(Some).map_err(|source| Error::Record {
            path: self.name(),
            line: self.line,
            source,
        })
    }
}

impl Iterator for Reader {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_record().transpose()
    }
}

/// Whether an incomplete line can be the start of a head record.
fn is_start_of_head(line: &[u8]) -> bool {
    HEAD_START.starts_with(line) || line.starts_with(HEAD_START)
}

/// Whether the error means that a compressed file ends too early.
fn is_truncation(error: &io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof
}

fn open_decompressed(path: &Path) -> io::Result<Box<dyn BufRead>> {
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
    use crate::record::Missing;

    const COMPRESSIONS: [Compression; 3] =
        [Compression::None, Compression::Gzip, Compression::Zstd];

    fn head() -> Record {
        Record::Head(Head { version: VERSION, program: "test".into(), ..Head::default() })
    }

    fn missing(records: u64) -> Record {
        Record::Missing(Missing { time: 1, records })
    }

    /// Reads records with the counts 1, 2, 3, … and returns their number, and whether the file
    /// is truncated.
    fn count_records(path: &Path) -> (u64, bool) {
        let mut reader = Reader::open(path).unwrap();
        let mut count = 0;
        for record in &mut reader {
            count += 1;
            assert_eq!(record.unwrap(), missing(count));
        }
        (count, reader.is_truncated())
    }

    #[test]
    fn written_records_are_read() {
        for compression in COMPRESSIONS {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut writer = Writer::new(file.reopen().unwrap(), compression).unwrap();
            writer.write(&head()).unwrap();
            (1..=1000).for_each(|n| writer.write(&missing(n)).unwrap());
            writer.finish().unwrap();
            assert_eq!(count_records(file.path()), (1000, false), "{compression:?}");
        }
    }

    /// A file truncated to any length contains all records that were flushed before.
    #[test]
    fn a_truncated_file_is_readable_up_to_the_last_flush() {
        for compression in COMPRESSIONS {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut writer = Writer::new(file.reopen().unwrap(), compression).unwrap();
            writer.write(&head()).unwrap();
            (1..=100).for_each(|n| writer.write(&missing(n)).unwrap());
            writer.flush().unwrap();
            let flushed = file.as_file().metadata().unwrap().len();
            (101..=200).for_each(|n| writer.write(&missing(n)).unwrap());
            writer.flush().unwrap();
            let all = file.as_file().metadata().unwrap().len();
            for len in (flushed..all).rev() {
                file.as_file().set_len(len).unwrap();
                let (count, _) = count_records(file.path());
                assert!((100..=200).contains(&count), "{compression:?}: {count} of {len} bytes");
            }
            // The file now ends with the first flush. A compressed file is truncated there; an
            // uncompressed one ends with a complete line.
            let (count, truncated) = count_records(file.path());
            assert_eq!(
                (count, truncated),
                (100, compression != Compression::None),
                "{compression:?}"
            );
        }
    }

    #[test]
    fn a_writer_killed_right_after_the_start_leaves_an_empty_trace() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for content in [&b""[..], b"{\"type\":\"he", b"\x28\xb5\x2f\xfd\x00", b"\x1f\x8b\x08"] {
            std::fs::write(file.path(), content).unwrap();
            assert_eq!(count_records(file.path()), (0, true), "{content:?}");
        }
    }

    #[test]
    fn other_files_are_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = |content: &str| {
            std::fs::write(file.path(), content).unwrap();
            Reader::open(file.path()).err().unwrap().to_string()
        };
        assert!(error("hello").contains("the first record is not a head"));
        assert!(error("hello\n").contains("the first record is not a head"));
        let newer = error(
            "{\"type\":\"head\",\"version\":9,\"program\":\"\",\"started_unix_ns\":0,\"endpoints\":[],\"values\":\"none\"}\n",
        );
        assert!(newer.contains("has version 9"), "{newer}");
    }

    #[test]
    fn a_damaged_record_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let head = serde_json::to_string(&head()).unwrap();
        std::fs::write(file.path(), format!("{head}\n{{\"type\":\"miss\n{head}\n")).unwrap();
        let mut reader = Reader::open(file.path()).unwrap();
        let error = reader.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("line 2: not a trace record"), "{error}");
    }
}
