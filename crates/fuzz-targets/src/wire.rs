//! Wire target: bytes to a server, bytes back to its client, calls, and RPC messages by a card.
//!
//! Input: side and whether it greets, or calls, or messages; length of the pieces that it comes in, on the client's side what
//! has been posted; then the bytes.

use farleaf_fabric::tcp::fuzz;

use crate::bytes::Bytes;

const POSTS_MAX: u8 = 32;

pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mode = bytes.u8();
    let piece = usize::from(bytes.u8()) + 1;
    if mode & 13 == 12 {
        let stream = bytes.rest();
        let answers = fuzz::calls(stream.chunks(piece));
        assert!(answers <= stream.len() / 16 + 1, "{answers} answers");
    } else if mode & 5 == 4 {
        let stream = bytes.rest();
        let pieces = stream.chunks(piece);
        let messages = pieces.len();
        assert!(fuzz::messages(pieces) <= messages);
    } else if mode & 1 == 0 {
        let stream = bytes.rest();
        let answers = fuzz::serve(mode & 2 != 0, stream.chunks(piece));
        // A request has 16 bytes at least.
        assert!(answers <= stream.len() / 16 + 1, "{answers} answers");
    } else {
        let count = bytes.u8() % POSTS_MAX;
        let posts = bytes.take(count.into());
        let done = fuzz::ask(posts, bytes.rest().chunks(piece));
        assert!(done <= posts.len());
    }
}
