//! Reads a snapshot that etcd 3.7.3 took after `put k1 v`, `put k2 v` and `put k3 v`.

use std::fs::File;
use std::io::Write;

use bolt::{Db, Error};

const SNAPSHOT: &[u8] = include_bytes!("etcd-3.7.3.snapshot");

fn open(content: &[u8]) -> Result<Db, Error> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    Db::open(File::try_clone(&file).unwrap(), content.len() as u64)
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn pairs(content: &[u8], bucket: &str) -> Result<Option<Pairs>, Error> {
    let mut pairs = Vec::new();
    let found = open(content)?.for_each(bucket.as_bytes(), |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
        Ok(())
    })?;
    Ok(found.then_some(pairs))
}

#[test]
fn reads_an_etcd_snapshot() {
    assert!(bolt::is_bolt(SNAPSHOT));
    let keys = pairs(SNAPSHOT, "key").unwrap().unwrap();
    assert_eq!(keys.len(), 3);
    assert_eq!(keys[0].0, b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\0");
    assert!(keys[2].1.windows(2).any(|bytes| bytes == b"k3"));
    assert_eq!(pairs(SNAPSHOT, "lease").unwrap().unwrap(), []);
    assert!(pairs(SNAPSHOT, "meta").unwrap().unwrap().len() > 2);
    assert!(pairs(SNAPSHOT, "nothing").unwrap().is_none());
}

/// Reading a damaged file returns an error or pairs, but never panics.
#[test]
fn damaged_files_never_panic() {
    for byte in 0..SNAPSHOT.len() {
        // Most bytes are unused zeros. The test changes only some of these.
        if SNAPSHOT[byte] == 0 && byte % 64 != 0 && byte % 4096 > 256 {
            continue;
        }
        for bit in [0x01, 0x80] {
            let mut bad = SNAPSHOT.to_vec();
            bad[byte] ^= bit;
            let _ = pairs(&bad, "key");
            let _ = pairs(&bad, "meta");
        }
    }
    for len in (0..20_480).step_by(100) {
        assert!(pairs(&SNAPSHOT[..len], "key").is_err(), "truncated to {len} bytes");
    }
    assert!(matches!(pairs(&[7; 9000], "key"), Err(Error::NoMeta)));
}
