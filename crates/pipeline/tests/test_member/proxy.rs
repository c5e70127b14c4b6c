//! A proxy in front of a member: it can keep the streams of a class away.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where the class is in what the connecting member says first, and the number of the class of forwarded commands.
const CLASS_OFFSET: usize = 14;
pub const FORWARD: u8 = 4;

/// A proxy for connections to a member. Its threads end with the process.
pub struct Proxy {
    pub url: String,
    blocked: Arc<AtomicU8>,
}

impl Proxy {
    /// Starts a proxy that passes connections on to this peer URL.
    pub fn start(to: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let to = to.trim_start_matches("http://").to_owned();
        let blocked = Arc::new(AtomicU8::new(0));
        let is_blocked = blocked.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (to, blocked) = (to.clone(), is_blocked.clone());
                std::thread::spawn(move || pass(connection, &to, &blocked));
            }
        });
        Proxy { url, blocked }
    }

    /// Refuses new streams of this class; 0 for none.
    pub fn block(&self, class: u8) {
        self.blocked.store(class, Ordering::SeqCst);
    }
}

fn pass(mut connection: TcpStream, to: &str, blocked: &AtomicU8) {
    let mut start = [0; CLASS_OFFSET + 1];
    if connection.read_exact(&mut start).is_err() {
        return;
    }
    if start[CLASS_OFFSET] == blocked.load(Ordering::SeqCst) {
        return;
    }
    let Ok(mut server) = TcpStream::connect(to) else { return };
    if server.write_all(&start).is_err() {
        return;
    }
    let (back, client) = (server.try_clone().unwrap(), connection.try_clone().unwrap());
    std::thread::spawn(move || copy(back, client));
    copy(connection, server);
}

/// Copies until one side ends, and ends the other one.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
