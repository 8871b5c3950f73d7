//! A gateway over memory of this process, and a client that reads whole replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use farleaf::{Farleaf, TableOptions};
use farleaf_gateway::{Gateway, GatewayOptions};

/// A gateway, and its store.
pub(crate) struct Served {
    pub(crate) db: Farleaf,
    pub(crate) gateway: Gateway,
}

pub(crate) fn serve(change: impl FnOnce(&mut GatewayOptions)) -> Served {
    let db = Farleaf::builder().pool_bytes(128 << 20).open("mem:").unwrap();
    let mut options = GatewayOptions::new(vec!["db0".to_owned(), "db1".to_owned()]);
    options.creates = Some(TableOptions::default());
    change(&mut options);
    let gateway = Gateway::start(db.clone(), options).unwrap();
    Served { db, gateway }
}

/// A client of RESP.
pub(crate) struct Resp {
    socket: BufReader<TcpStream>,
}

impl Resp {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.set_nodelay(true).unwrap();
        Resp { socket: BufReader::new(socket) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.get_mut().write_all(bytes).unwrap();
    }

    /// Sends nothing more.
    pub(crate) fn end(&mut self) {
        self.socket.get_mut().shutdown(Shutdown::Write).unwrap();
    }

    /// As [`Resp::send`], to a connection that the other side may have ended.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let socket = self.socket.get_mut();
        socket.set_write_timeout(Some(Duration::from_secs(20)))?;
        socket.write_all(bytes)
    }

    /// Sends a command and returns its reply, to the byte.
    pub(crate) fn ask(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.send(&command(args));
        self.reply()
    }

    /// As [`Resp::ask`], of words and with a text.
    pub(crate) fn say(&mut self, line: &str) -> String {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        String::from_utf8(self.ask(&args)).unwrap()
    }

    /// The next whole reply.
    pub(crate) fn reply(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.read_reply(&mut all);
        all
    }

    /// Reads so many bytes of a reply.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.socket.read_exact(&mut vec![0; bytes]).unwrap();
    }

    fn read_reply(&mut self, all: &mut Vec<u8>) {
        let begin = all.len();
        self.socket.read_until(b'\n', all).unwrap();
        let line = all[begin..].to_vec();
        assert!(
            line.ends_with(b"\r\n"),
            "the connection ended: {:?}",
            String::from_utf8_lossy(all)
        );
        let number = || String::from_utf8_lossy(&line[1..line.len() - 2]).parse::<i64>().unwrap();
        match line[0] {
            b'+' | b'-' | b':' | b'_' => {}
            b'$' | b'=' => {
                if let Ok(bytes) = usize::try_from(number()) {
                    let from = all.len();
                    all.resize(from + bytes + 2, 0);
                    self.socket.read_exact(&mut all[from..]).unwrap();
                }
            }
            b'*' | b'~' => (0..number()).for_each(|_| self.read_reply(all)),
            b'%' => (0..2 * number()).for_each(|_| self.read_reply(all)),
            other => panic!("a reply begins with {other}"),
        }
    }

    /// Reads what there is up to the end of the connection; true if it comes.
    pub(crate) fn is_over(&mut self) -> bool {
        self.socket.read_to_end(&mut Vec::new()).is_ok()
    }

    /// True if the other side has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.socket.read(&mut [0]), Ok(0) | Err(_))
    }
}

/// A command as clients send it.
pub(crate) fn command(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    farleaf_resp::wire::put_command(&mut bytes, args);
    bytes
}
