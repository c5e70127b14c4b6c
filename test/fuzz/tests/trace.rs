//! Fuzz test of the trace reader with damaged trace files. Reading must not panic and must
//! end, and the records that were read must be the same after they are written and read again.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use flate2::write::GzEncoder;
use proptest::prelude::*;
use proptest::sample::Index;
use trace::{Compression, Reader, Record, Writer};

const LINES: &[&str] = &[
    r#"{"type":"head","version":1,"program":"p","started_unix_ns":1,"endpoints":["e"],"values":"full"}"#,
    r#"{"type":"call","time":1,"latency":2,"conn":3,"stream":5,"method":"/etcdserverpb.KV/Range","request_bytes":4,"response_bytes":5,"kind":"pods","namespace":"a","request":{"range":{"key":"/registry/pods/a/b","limit":1}},"response":{"revision":7,"count":1,"kvs":1,"value_bytes":9},"end":{"code":0}}"#,
    r#"{"type":"call","time":1,"latency":2,"conn":3,"stream":7,"method":"/etcdserverpb.KV/Txn","request_bytes":4,"response_bytes":5,"shape":"s","request":{"txn":{"compare":[{"key":"k","result":"=","with":{"mod":3}}],"success":[{"put":{"key":{"base64":"AP8="},"value":{"bytes":1,"base64":"AA=="},"lease":9}}],"failure":[{"range":{"key":"k"}}]}},"end":{"cut":"client"}}"#,
    r#"{"type":"open","time":1,"conn":2,"stream":3,"method":"/etcdserverpb.Watch/Watch"}"#,
    r#"{"type":"sent","time":1,"conn":2,"stream":3,"bytes":4,"request":{"watch_create":{"key":"a","range_end":"b"}}}"#,
    r#"{"type":"received","time":1,"conn":2,"stream":3,"bytes":4,"response":{"watch":{"watch_id":1,"events":[{"key":"a","mod_revision":3}]}}}"#,
    r#"{"type":"end","time":1,"conn":2,"stream":3,"latency":4,"end":{"code":14,"message":"m"}}"#,
    r#"{"type":"missing","time":1,"lines":4}"#,
];

/// A replacement for a part of a line.
fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i128>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        "\\PC{0,8}".prop_map(|text| format!("{text:?}")),
        prop::sample::select(vec![
            "null",
            "true",
            "{}",
            "[]",
            "[[[[",
            "{\"a\":",
            "\"\\ud800\"",
            "\"AA\"",
            ",",
            ":",
            "\"",
            "}",
            "",
            "\n",
            "\0",
        ])
        .prop_map(String::from),
        (0..LINES.len()).prop_map(|line| LINES[line].into()),
        (1..200_usize).prop_map(|depth| r#"{"txn":{"success":["#.repeat(depth)),
    ]
}

/// A line of a trace with some parts replaced.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<Index>(), 0..12_usize, token());
    (0..LINES.len(), prop::collection::vec(change, 0..3)).prop_map(|(line, changes)| {
        let mut bytes = LINES[line].as_bytes().to_vec();
        for (at, len, token) in changes {
            let at = at.index(bytes.len() + 1);
            let end = bytes.len().min(at + len);
            bytes.splice(at..end, token.into_bytes());
        }
        bytes.push(b'\n');
        bytes
    })
}

fn compressed(text: &[u8], compression: Compression) -> Vec<u8> {
    match compression {
        Compression::None => text.to_vec(),
        Compression::Zstd => zstd::encode_all(text, 1).unwrap(),
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// Reads the records of a trace up to its end or the first error.
fn readable_records(path: &Path) -> Vec<Record> {
    let Ok(reader) = Reader::open(path) else { return Vec::new() };
    let head = Record::Head(reader.head().clone());
    std::iter::once(head).chain(reader.map_while(Result::ok)).collect()
}

proptest! {
    #[test]
    fn records_that_were_read_can_be_written_and_read_again(
        lines in prop::collection::vec(line(), 0..6), starts_with_head in any::<bool>(),
        compression in prop::sample::select(
            vec![Compression::None, Compression::Gzip, Compression::Zstd]
        ),
        overwritten_bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..2),
        truncated_len in prop::option::of(any::<Index>()),
    ) {
        let mut text = Vec::new();
        if starts_with_head {
            text.extend(format!("{}\n", LINES[0]).into_bytes());
        }
        lines.iter().for_each(|line| text.extend(line));
        let mut content = compressed(&text, compression);
        for (at, value) in overwritten_bytes {
            if !content.is_empty() {
                let at = at.index(content.len());
                content[at] = value;
            }
        }
        if let Some(len) = truncated_len {
            content.truncate(len.index(content.len() + 1));
        }
        let folder = tempfile::tempdir().unwrap();
        let (damaged, rewritten) = (folder.path().join("damaged"), folder.path().join("rewritten"));
        std::fs::write(&damaged, &content).unwrap();
        let records = readable_records(&damaged);
        // If the file ends within the head record, the reader returns a default head with
        // version 0. Skip this case: a reader would reject a file with version 0.
        if records.is_empty() || !matches!(&records[0], Record::Head(head) if head.version == 1) {
            return Ok(());
        }
        let mut writer = Writer::new(File::create(&rewritten).unwrap(), compression).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap();
        prop_assert_eq!(readable_records(&rewritten), records);
    }
}

/// Checks that [`LINES`] are valid records. If they were not, the test above would read no
/// records.
#[test]
fn samples_are_valid_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples");
    std::fs::write(&path, LINES.iter().map(|line| format!("{line}\n")).collect::<String>())
        .unwrap();
    assert_eq!(readable_records(&path).len(), LINES.len());
}
